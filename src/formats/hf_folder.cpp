#include "formats/hf_folder.h"

#include "base/error.h"

namespace kd {

class SafetensorsFile {};

HfFolder::HfFolder(const std::string& path, ForeignTensors) : path_(path) {
    KD_THROW(unsupported, "{}: is a directory", path);
}

HfFolder::~HfFolder() = default;

std::string HfFolder::name() const {
    return path_;
}

std::vector<const MappedFile*> HfFolder::files() const {
    return {};
}

const FileTensor* HfFolder::find_tensor(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace kd
