// The cases of bench/attn_verify: what is measured, the bytes and flops of it, the command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kdtree/kernels.h"

namespace kd::bench {

inline constexpr int32_t kMlaLatent = 512;
inline constexpr int32_t kMlaDim = 576;
/// No random tree is deeper; also max_depth in deterministic mode.
inline constexpr int32_t kMaxDepth = 16;

/// One cell: `batch` requests of the same context and tree size.
struct Case {
    kdt_attn_kind kind = KDT_ATTN_MLA;
    int32_t heads = 8;
    int32_t kv_heads = 1;
    int32_t head_dim = kMlaDim;
    int32_t nodes = 1;  // of one request
    int32_t context = 4096;
    kdt_kv_format kv_format = KDT_KV_BF16;
    int32_t batch = 1;
    int32_t page_size = 1;
    bool shuffled = true;
    int32_t splits = 0;  // 0: planned

    bool operator==(const Case&) const = default;

    int32_t value_dim() const { return kind == KDT_ATTN_MLA ? kMlaLatent : head_dim; }
    int32_t rows() const { return batch * nodes * heads; }
    int64_t keys() const { return int64_t{context} + nodes; }  // of one request
    /// Of one slot in one of the caches (GQA has two).
    int64_t slot_bytes() const;
    int32_t caches() const { return kind == KDT_ATTN_MLA ? 1 : 2; }
    int64_t pages_per_request() const { return (int64_t{context} + page_size - 1) / page_size; }
    int64_t total_pages() const {
        return batch * pages_per_request() + (int64_t{batch} * nodes + page_size - 1) /
                                                 page_size;  // the tail has pages of its own
    }
    int64_t slots() const { return total_pages() * page_size; }

    /// Each needed cache row read once, Q read and O written once.
    double min_bytes() const;
    /// Both products over all keys of the request, the tail as if it were dense.
    double flops() const;
};

struct Options {
    std::string json;
    std::vector<Case> cases;
    kdt_attn_path path = KDT_PATH_AUTO;
    kdt_attn_mode mode = KDT_ATTN_FAST;
    int32_t repeat = 40;
    bool check = false;
    bool list = false;
};

extern const char* const kHelp;

/// Nothing: help was asked for. Throws std::invalid_argument with what is wrong.
std::optional<Options> parse(int argc, char** argv);

const char* op_name(const Case& c);
const char* format_name(kdt_kv_format format);
const char* path_name(kdt_attn_path path);
/// "8 x 32", "32/8 x 16".
std::string shape_name(const Case& c);

}  // namespace kd::bench
