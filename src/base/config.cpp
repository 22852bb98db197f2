#include "base/config.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/error.h"
#include "base/views.h"

namespace kd {

namespace {

constexpr int32_t kPageSizes[] = {1, 16, 32, 64};

void expect_range(const char* name, int64_t value, int64_t min, int64_t max) {
    if (value < min || value > max) {
        KD_THROW(invalid_argument, "{} {} is outside {}..{}", name, value, min, max);
    }
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

const char* name_of(SpeculativeAlgorithm algorithm) {
    switch (algorithm) {
        case SpeculativeAlgorithm::none:
            return "none";
        case SpeculativeAlgorithm::ngram:
            return "ngram";
        case SpeculativeAlgorithm::dflash:
            return "dflash";
        case SpeculativeAlgorithm::oracle:
            return "oracle";
    }
    return "?";
}

void validate(const Config& config) {
    expect_range("context length", config.context_length, 0, 1 << 24);
    expect_range("threads", config.threads, 0, 1024);
    expect_range("max running requests", config.max_running_requests, 1, 4096);
    expect_range("max total tokens", config.max_total_tokens, 0, 1 << 30);
    expect_range("chunked prefill size", config.chunked_prefill_size, 1, 8192);
    if (std::ranges::find(kPageSizes, config.page_size) == std::end(kPageSizes)) {
        KD_THROW(invalid_argument, "page size {} is none of 1, 16, 32, 64", config.page_size);
    }
    expect_range("kv extent", config.kv_extent, 0, 1 << 24);
    expect_range("kv headroom", config.kv_headroom, 0, 1 << 24);
    if (!(config.kv_evict_batch >= 0 && config.kv_evict_batch <= 1)) {
        KD_THROW(invalid_argument, "kv evict batch {} is outside 0..1", config.kv_evict_batch);
    }
    expect_range("kv relocate", config.kv_relocate, 0, 1 << 30);
    expect_range("speculative num draft tokens", config.max_draft_tokens, 1, kMaxTreeNodes);
    const bool oracle = config.speculative_algorithm == SpeculativeAlgorithm::oracle;
    const bool dflash = config.speculative_algorithm == SpeculativeAlgorithm::dflash;
    if (oracle && config.speculative_draft_model_path.empty()) {
        KD_THROW(invalid_argument,
                 "the oracle drafter needs a profile: --speculative-draft-model-path FILE.json");
    }
    if (dflash && config.speculative_draft_model_path.empty()) {
        KD_THROW(invalid_argument,
                 "the dflash drafter needs a checkpoint: --speculative-draft-model-path FOLDER");
    }
    if (!oracle && !dflash && !config.speculative_draft_model_path.empty()) {
        KD_THROW(invalid_argument, "the {} drafter takes no speculative draft model path ({})",
                 name_of(config.speculative_algorithm), config.speculative_draft_model_path);
    }
}

Environment read_environment() {
    std::string cache = variable("KDTREE_CACHE");
    if (cache.empty()) {
        const std::string xdg = variable("XDG_CACHE_HOME");
        const std::string home = variable("HOME");
        if (xdg.empty() && home.empty()) {
            KD_THROW(invalid_argument,
                     "no cache folder: none of KDTREE_CACHE, XDG_CACHE_HOME and HOME is set");
        }
        cache = !xdg.empty() ? xdg + "/kdtree" : home + "/.cache/kdtree";
    }
    return {.cache_folder = cache};
}

}  // namespace kd
