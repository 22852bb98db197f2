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

std::string_view name_of(RopeScalingType type) {
    switch (type) {
        case RopeScalingType::none:
            return "none";
        case RopeScalingType::linear:
            return "linear";
        case RopeScalingType::llama3:
            return "llama3";
        case RopeScalingType::yarn:
            return "yarn";
    }
    return "?";
}

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
