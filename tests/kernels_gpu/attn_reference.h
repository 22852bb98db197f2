// The attention references on the device: one thread block a (node, head), sums in double, written
// from the formula like the references on the host, which they are compared with. And the values
// of the cases, written on the device, and other kernels of the tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_cases.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cases.h"

namespace kd {

/// As fill_attn_verify_mla, with `rows` [row_count], `query_ids` [nodes], `query` and `kv` in
/// device memory.
void fill_on_device(const AttnVerifyMlaInputs& inputs, const CaseRow* rows, int64_t row_count,
                    const uint64_t* query_ids, std::byte* query, std::byte* kv);
void fill_on_device(const AttnVerifyGqaCudaInputs& inputs, const CaseRow* rows, int64_t row_count,
                    const uint64_t* query_ids, std::byte* query, std::byte* kv);

/// As attn_verify_mla_ref of the first `nodes` nodes, with every pointer in device memory.
void attn_verify_mla_reference(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                               const kdt_attn_mla_tensors& tensors, int32_t nodes, double* out,
                               double* lse);
void attn_verify_gqa_reference(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                               const kdt_attn_gqa_tensors& tensors, int32_t nodes, double* out,
                               double* lse);

/// Adds the number of words that differ to *differing, all in device memory.
void count_differing_words(const uint32_t* a, const uint32_t* b, int64_t words,
                           unsigned long long* differing, void* stream);

/// `bytes`, a multiple of 16.
struct LateCopy {
    const std::byte* from;
    std::byte* to;
    int64_t bytes;
};
/// Makes both copies in one kernel that lets the next one start at once, and takes its time.
void copy_late(const LateCopy& first, const LateCopy& second, void* stream);

/// e4m3 codes 0..255 as the device's own conversion to f16 reads them. values: [256], host.
void decode_e4m3_on_device(float* values);

}  // namespace kd
