// Every setting of the engine, defaults beside the fields, and the environment, read in one place.
#pragma once

#include <cstdint>
#include <string>

namespace kd {

enum class SpeculativeAlgorithm : uint8_t { none, ngram, dflash, oracle };
const char* name_of(SpeculativeAlgorithm algorithm);

struct Config {
    std::string model = "smollm2";  // a name the project can fetch, or a .gguf file
    int32_t context_length = 0;     // tokens of one session, prompt and answer; 0: the model's
    int32_t threads = 0;            // 0: what affinity and cgroup allow
    int32_t max_running_requests = 1;
    int32_t max_total_tokens = 0;  // slots of the KV pool; 0: context_length for every request
    int32_t chunked_prefill_size = 128;  // prompt rows in one round, all sessions together
    int32_t page_size = 1;               // tokens of a page of the KV pool: 1, 16, 32 or 64
    bool radix_cache = true;         // prompts start from what earlier sessions computed of them
    int32_t kv_extent = 64;          // slots of a session are taken by so many; 0 or 1: as needed
    int32_t kv_headroom = 1024;      // slots taken behind a prompt for its answer, at most
    double kv_evict_batch = 0.1;     // of what the cache holds, evicted at once; 0: the shortage
    int32_t kv_relocate = 0;         // rows moved between two rounds at most; 0: none
    bool reference_kernels = false;  // every op by its plain reference; slow
    SpeculativeAlgorithm speculative_algorithm = SpeculativeAlgorithm::ngram;
    std::string speculative_draft_model_path;  // dflash: its folder; oracle: its profile
    int32_t max_draft_tokens = 32;             // most verified rows of one tree, the root included
};

/// Throws kd::Error naming the first setting out of range.
void validate(const Config& config);

/// What the environment says; the only reader of KDTREE_* variables. Throws kd::Error if it names
/// no cache folder.
struct Environment {
    std::string cache_folder;  // $KDTREE_CACHE, else kdtree in the XDG cache
};
Environment read_environment();

}  // namespace kd
