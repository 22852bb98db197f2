#include "formats/model_config.h"

#include "base/error.h"
#include "formats/config_readers.h"
#include "formats/model_file.h"

namespace kd {

namespace {

ModelConfig read_parts(const ModelFile& file, const AttemptPart& attempt) {
    return file.gguf() != nullptr ? read_gguf_config(*file.gguf(), attempt)
                                  : read_hf_config(*file.folder(), attempt);
}

}  // namespace

ModelConfig read_model_config(const ModelFile& file) {
    return read_parts(file, [](const std::function<void()>& part) {
        part();
        return true;
    });
}

ModelConfig probe_model_config(const ModelFile& file, std::vector<std::string>& faults) {
    return read_parts(file, [&](const std::function<void()>& part) {
        try {
            part();
            return true;
        } catch (const Error& error) {
            faults.emplace_back(error.what());
            return false;
        }
    });
}

}  // namespace kd
