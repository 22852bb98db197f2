#include "formats/model_file.h"

#include <filesystem>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/hf_folder.h"

namespace kd {

ModelFile::ModelFile(const std::string& path, ForeignTensors foreign) : path_(path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
        folder_ = std::make_unique<HfFolder>(path, foreign);
        return;
    }
    for (const std::string_view part : {".safetensors", ".json"}) {
        if (path.ends_with(part)) {
            KD_THROW(invalid_argument,
                     "{}: is a part of a model: give the folder that holds config.json and weights",
                     path);
        }
    }
    gguf_ = std::make_unique<GgufFile>(path, foreign);
}

ModelFile::~ModelFile() = default;

std::string ModelFile::format() const {
    return gguf_ != nullptr ? fmt::format("GGUF v{}", gguf_->version()) : "Hugging Face folder";
}

const std::vector<FileTensor>& ModelFile::tensors() const {
    return gguf_ != nullptr ? gguf_->tensors() : folder_->tensors();
}

const std::vector<ForeignTensor>& ModelFile::foreign_tensors() const {
    return gguf_ != nullptr ? gguf_->foreign_tensors() : folder_->foreign_tensors();
}

const FileTensor* ModelFile::find_tensor(std::string_view name) const {
    return gguf_ != nullptr ? gguf_->find_tensor(name) : folder_->find_tensor(name);
}

std::vector<const MappedFile*> ModelFile::files() const {
    if (gguf_ == nullptr) return folder_->files();
    std::vector<const MappedFile*> files;
    for (const auto& file : gguf_->files()) files.push_back(file.get());
    return files;
}

const std::string& ModelFile::path_of(const FileTensor& tensor) const {
    return files()[static_cast<size_t>(tensor.part)]->path();
}

size_t ModelFile::bytes() const {
    size_t bytes = 0;
    for (const MappedFile* file : files()) bytes += file->bytes();
    return bytes;
}

void ModelFile::release() const {
    for (const MappedFile* file : files()) file->release(file->data(), file->bytes());
}

}  // namespace kd
