// Arbitrary model and drafter folders. Input: config.json, model.safetensors.index.json and the
// weights, parted by a byte 0xFF, which JSON has nowhere; without an index the weights are
// model.safetensors, otherwise model-1.safetensors. The configuration may be refused with
// kd::Error, in one line; one that is read keeps its promises.
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "formats/dflash_config.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "support/hf_writer.h"

namespace kd {
namespace {

void check_line(std::string_view message) {
    const bool one_line = std::ranges::none_of(
        message, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; });
    KD_CHECK(!message.empty() && one_line, "message: {}", message);
}

/// Calls it; a refusal has to be one line. Whether there was none.
template <class Call>
bool is_taken(const Call& call) {
    try {
        call();
        return true;
    } catch (const Error& error) {
        check_line(error.what());
        return false;
    }
}

/// What attention takes and later sizes are computed from.
void check_heads(int64_t heads, int64_t kv_heads, int64_t head_dim, double factor) {
    KD_CHECK(
        heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= kMaxHeadGroup,
        "{} heads, {} K/V heads", heads, kv_heads);
    KD_CHECK(head_dim > 0 && head_dim <= kMaxHeadDim && head_dim % kHeadDimStep == 0, "head of {}",
             head_dim);
    KD_CHECK(factor >= 1e-3 && factor <= 1e6, "factor {}", factor);
}

void check_model(const ModelFile& file) {
    std::vector<std::string> faults;
    const ModelConfig probed = probe_model_config(file, faults);
    ModelConfig config;
    const bool taken = is_taken([&] { config = read_model_config(file); });
    KD_CHECK(taken == faults.empty(), "{} faults, read: {}", faults.size(), taken);
    for (const std::string& fault : faults) check_line(fault);
    if (!taken) return;
    KD_CHECK(!name_of(config.rope_scaling.type).empty(), "a scaling without a name");
    KD_CHECK(config.rope_dim % 2 == 0 && config.rope_dim <= config.head_dim, "{} of {} rotate",
             config.rope_dim, config.head_dim);
    if (config.mla.kv_lora == 0) {
        check_heads(config.heads, config.kv_heads, config.head_dim, config.rope_scaling.factor);
    }
}

void check_drafter(const std::string& folder) {
    is_taken([&] { is_dflash_folder(folder); });
    DflashConfig config;
    if (!is_taken([&] { config = read_dflash_config(folder); })) return;
    is_taken([&] { check_dflash_target(config, {.layers = 4, .hidden = 64, .vocabulary = 320}); });
    check_heads(config.heads, config.kv_heads, config.head_dim, config.rope_scaling.factor);
    KD_CHECK(config.drafts > 0 && config.first_row + config.drafts <= config.block,
             "{} drafts from row {} of {}", config.drafts, config.first_row, config.block);
    KD_CHECK(config.mask_token >= 0 && config.mask_token < config.vocabulary, "mask {} of {}",
             config.mask_token, config.vocabulary);
    KD_CHECK(std::ranges::is_sorted(config.target_layers), "layers do not ascend");
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    using namespace kd;
    static const TempFolder kFolder;
    std::string_view rest(reinterpret_cast<const char*>(data), bytes);
    const auto take = [&] {
        const size_t end = std::min(rest.find('\xFF'), rest.size());
        const std::string_view part = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        return part;
    };
    for (const auto& entry : std::filesystem::directory_iterator(kFolder.path())) {
        std::filesystem::remove(entry.path());
    }
    kFolder.write("config.json", take());
    const std::string_view index = take();
    if (!index.empty()) kFolder.write("model.safetensors.index.json", index);
    kFolder.write(index.empty() ? "model.safetensors" : "model-1.safetensors", rest);
    is_taken([] { check_model(ModelFile(kFolder.path(), ForeignTensors::list)); });
    check_drafter(kFolder.path());
    return 0;
}
