// A case of tree-verify attention on the device, run through the C ABI, MLA and GQA alike.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device_array.h"
#include "kernels/attn_check.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_cases.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cases.h"

namespace kd {

/// Device memory, filled with NaN (0xff bytes) if `poisoned`.
class DeviceBytes {
  public:
    explicit DeviceBytes(int64_t bytes, bool poisoned = true);
    ~DeviceBytes();
    DeviceBytes(const DeviceBytes&) = delete;
    DeviceBytes& operator=(const DeviceBytes&) = delete;

    std::byte* data() const { return static_cast<std::byte*>(data_); }
    int64_t bytes() const { return bytes_; }
    void poison(cudaStream_t stream = nullptr) const;
    /// To the beginning.
    void upload(const void* from, size_t bytes) const;

  private:
    int64_t bytes_;
    void* data_ = nullptr;
};

/// Results with guard rows behind them that no kernel may write.
struct AttnOutputs {
    AttnOutputs(int64_t rows, int32_t dim);
    void poison(cudaStream_t stream = nullptr) const;
    /// Nothing behind the first `rows` rows was written. Waits for the device.
    testing::AssertionResult untouched_behind(int64_t rows) const;
    /// The first `rows` rows. Waits for the device.
    std::vector<uint16_t> read_out(int64_t rows) const;
    std::vector<float> read_lse(int64_t rows) const;

    int64_t rows;
    int32_t dim;
    DeviceBytes out;  // bf16 [rows + guard, dim]
    DeviceBytes lse;  // float [rows + guard]
};

/// Plan and partial results, of exactly the size that the library asks for, with a guard behind.
class AttnScratch {
  public:
    explicit AttnScratch(size_t bytes);
    void poison(cudaStream_t stream = nullptr) const;
    /// Zeros instead.
    void clear() const;
    void* data() const { return memory_.data(); }
    size_t bytes() const { return bytes_; }
    testing::AssertionResult guard_is_whole() const;

  private:
    size_t bytes_;
    DeviceBytes memory_;
};

/// A step's arrays in device memory.
class AttnDeviceBatch {
  public:
    explicit AttnDeviceBatch(const AttnStep& step);
    /// Replaces them by those of a step with no more of anything; what is left of the former is
    /// NaN.
    void write(const AttnStep& step);
    /// The batch of `step`, the one written last. `depth` false: without the depths.
    kdt_attn_batch view(const AttnStep& step, bool depth) const;

  private:
    DeviceBytes context_, node_start_, tail_slots_, ancestors_, depth_, pages_, pages_start_;
};

/// A sound batch, pages of 16, whose arrays all lie at `arrays`: for calls that read none of them.
kdt_attn_batch batch_at(const void* arrays, int32_t requests, int32_t max_nodes,
                        int32_t max_context);

class AttnDeviceCase {
  public:
    explicit AttnDeviceCase(AttnVerifyMlaInputs inputs);
    explicit AttnDeviceCase(AttnVerifyGqaCudaInputs inputs);

    const AttnStep& step() const { return step_; }
    /// Fast mode, automatic path.
    const kdt_attn_shape& shape() const { return shape_; }
    int32_t value_dim() const { return mla_ ? 512 : shape_.head_dim; }
    int64_t rows() const { return int64_t{step_.nodes()} * shape_.heads; }
    AttnTolerance tolerance() const;

    /// Replaces the step by one that fits into its arrays and whose rows are in the cache. The
    /// queries stay those of the node indices.
    void set_step(AttnStep step);

    /// Forgets the queries and the nodes' rows of the cache; a kernel on `stream` writes them
    /// again, late, and lets the next one start before. Not for slots that hold K and V side by
    /// side.
    void rewrite_late(cudaStream_t stream);

    /// The step in device memory. `depth` false: without the depths, where they are not needed.
    kdt_attn_batch batch(bool depth) const;
    kdt_status plan(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                    const AttnScratch& scratch, cudaStream_t stream) const;
    kdt_status verify(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                      const AttnOutputs& outputs, bool lse, const AttnScratch& scratch,
                      cudaStream_t stream) const;

    /// What the reference on the device says about the step.
    void attend_exactly(std::vector<double>& out, std::vector<double>& lse) const;
    /// And the one on the host, from a copy of the device's memory.
    void attend_on_host(std::vector<double>& out, std::vector<double>& lse) const;
    /// The results against attend_exactly(), which is asked once a step.
    testing::AssertionResult agrees(const std::vector<uint16_t>& out,
                                    const std::vector<float>& lse);

  private:
    void allocate(int64_t query_bytes, int64_t kv_bytes);

    bool mla_;
    AttnStep step_;
    kdt_attn_shape shape_;
    kdt_attn_mla_tensors mla_tensors_{};
    kdt_attn_gqa_tensors gqa_tensors_{};
    std::unique_ptr<DeviceBytes> query_, kv_;
    std::unique_ptr<AttnDeviceBatch> batch_;
    std::unique_ptr<DeviceBytes> saved_query_, saved_kv_;  // of rewrite_late()
    std::vector<double> exact_out_, exact_lse_;
    bool exact_ = false;
};

/// What one plan and verify gave.
struct AttnRun {
    kdt_status status = KDT_OK;
    std::string message;
    std::vector<uint16_t> out;
    std::vector<float> lse;
};

/// Plans and verifies with poisoned outputs and workspace, then (not for a sanitizer) verifies
/// again from the same plan without log-sum-exp, as the next layer would, and from a workspace that
/// was zeros, and expects the same bits; expects nothing written behind the rows and the workspace.
AttnRun run_attn(const AttnDeviceCase& on_device, const kdt_attn_shape& shape);

/// The case's shape in a path and mode; in deterministic mode its max_depth suits the step. Empty
/// if the step is too deep for that mode.
std::optional<kdt_attn_shape> shape_of(const AttnDeviceCase& on_device, kdt_attn_path path,
                                       kdt_attn_mode mode);

const char* name_of(kdt_attn_path path);
const char* name_of(kdt_attn_mode mode);

/// Runs `test(path, mode)` for all of them.
template <class Test>
void for_each_variant(Test&& test) {
    for (const kdt_attn_path path : {KDT_PATH_WGMMA, KDT_PATH_MMA_SYNC}) {
        for (const kdt_attn_mode mode : {KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC}) {
            SCOPED_TRACE(testing::Message() << name_of(path) << ", " << name_of(mode));
            test(path, mode);
            if (testing::Test::HasFatalFailure()) return;
        }
    }
}

/// Skipped without a device, or after a test that broke the device's context.
class AttnGpuTest : public GpuTest {
  protected:
    void SetUp() override;
};

}  // namespace kd
