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

void check_kv_heads(int64_t heads, int64_t kv_heads, const std::string& where) {
    if (heads % kv_heads != 0) {
        KD_THROW(corrupt, "{}: {} does not divide {}", where, kv_heads, heads);
    }
    if (heads / kv_heads > kMaxHeadGroup) {
        KD_THROW(unsupported, "{}: {} for {} heads: more than {} heads a K/V head", where, kv_heads,
                 heads, kMaxHeadGroup);
    }
}

void check_head_dim(int64_t head_dim, const std::string& where) {
    if (head_dim % kHeadDimStep != 0 || head_dim > kMaxHeadDim) {
        KD_THROW(unsupported, "{}: {} elements a head, no multiple of {} up to {}", where, head_dim,
                 kHeadDimStep, kMaxHeadDim);
    }
}

void check_experts(const MoeShape& moe, const std::string& where) {
    if (moe.experts % moe.groups != 0) {
        KD_THROW(corrupt, "{}: {} groups do not divide {} experts", where, moe.groups, moe.experts);
    }
    if (moe.used > moe.groups_used * (moe.experts / moe.groups)) {
        KD_THROW(corrupt, "{}: {} of {} groups of {} experts hold less than the {} used", where,
                 moe.groups_used, moe.groups, moe.experts / moe.groups, moe.used);
    }
    if (int64_t{moe.shared} * moe.intermediate > kMaxIntermediate) {
        KD_THROW(corrupt, "{}: {} shared experts of {} elements are more than {} together", where,
                 moe.shared, moe.intermediate, kMaxIntermediate);
    }
}

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
