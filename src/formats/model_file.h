// A model on disk, whatever its form.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/file_tensor.h"
#include "formats/mapped_file.h"

namespace kd {

class GgufFile;
class HfFolder;

/// A .gguf file (whole, or the parts of a split one) or a Hugging Face folder, memory-mapped: views
/// of it are valid as long as it is.
class ModelFile {
  public:
    /// Throws kd::Error, one line, for a path that is neither, and what GgufFile and HfFolder
    /// throw.
    explicit ModelFile(const std::string& path, ForeignTensors foreign = ForeignTensors::refuse);
    ~ModelFile();
    ModelFile(const ModelFile&) = delete;
    ModelFile& operator=(const ModelFile&) = delete;

    const std::string& path() const { return path_; }
    /// Null if the model has the other form.
    const GgufFile* gguf() const { return gguf_.get(); }
    const HfFolder* folder() const { return folder_.get(); }

    /// "GGUF v3", "Hugging Face folder".
    std::string format() const;
    /// The files that hold its weights, by FileTensor::part.
    std::vector<const MappedFile*> files() const;
    const std::string& path_of(const FileTensor& tensor) const;
    /// Of all these files together.
    size_t bytes() const;
    /// Names as in the file, dims with the contiguous one first.
    const std::vector<FileTensor>& tensors() const;
    const std::vector<ForeignTensor>& foreign_tensors() const;
    /// Null if absent.
    const FileTensor* find_tensor(std::string_view name) const;

    /// Drops the resident pages of all weights; they are read again on the next use.
    void release() const;

  private:
    std::string path_;
    std::unique_ptr<GgufFile> gguf_;
    std::unique_ptr<HfFolder> folder_;
};

}  // namespace kd
