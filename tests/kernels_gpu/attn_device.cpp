#include "attn_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "attn_reference.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_ref.h"
#include "kernels/attn_verify_mla/attn_verify_mla_ref.h"

namespace kd {

namespace {

constexpr int64_t kGuardRows = 80;  // more than a row tile
constexpr int64_t kGuardBytes = 4096;

template <class T>
std::unique_ptr<DeviceBytes> device_copy(const std::vector<T>& values) {
    auto copy = std::make_unique<DeviceBytes>(static_cast<int64_t>(values.size() * sizeof(T)));
    copy->upload(values.data(), values.size() * sizeof(T));
    return copy;
}

template <class T>
void read_back(const DeviceBytes& from, int64_t offset_bytes, std::vector<T>& to) {
    EXPECT_TRUE(ok(cudaDeviceSynchronize()));
    EXPECT_TRUE(ok(cudaMemcpy(to.data(), from.data() + offset_bytes, to.size() * sizeof(T),
                              cudaMemcpyDeviceToHost)));
}

testing::AssertionResult still_poisoned(const DeviceBytes& memory, int64_t begin, int64_t end) {
    std::vector<uint8_t> bytes(static_cast<size_t>(end - begin));
    read_back(memory, begin, bytes);
    const auto at = std::find_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b != 0xff; });
    if (at == bytes.end()) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "byte " << at - bytes.begin() << " behind the end was written: " << int{*at};
}

}  // namespace

// ---- memory -----------------------------------------------------------------------------------

DeviceBytes::DeviceBytes(int64_t bytes, bool poisoned) : bytes_(bytes) {
    EXPECT_TRUE(ok(cudaMalloc(&data_, static_cast<size_t>(std::max(bytes, int64_t{16})))));
    if (poisoned) poison();
}

DeviceBytes::~DeviceBytes() {
    cudaFree(data_);
}

void DeviceBytes::poison(cudaStream_t stream) const {
    EXPECT_TRUE(ok(cudaMemsetAsync(data_, 0xff, static_cast<size_t>(bytes_), stream)));
    if (stream == nullptr) {
        EXPECT_TRUE(ok(cudaDeviceSynchronize()));
    }
}

void DeviceBytes::upload(const void* from, size_t bytes) const {
    ASSERT_LE(static_cast<int64_t>(bytes), bytes_);
    EXPECT_TRUE(ok(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice)));
}

AttnOutputs::AttnOutputs(int64_t row_count, int32_t value_dim)
    : rows(row_count),
      dim(value_dim),
      out((row_count + kGuardRows) * value_dim * 2),
      lse((row_count + kGuardRows) * 4) {}

void AttnOutputs::poison(cudaStream_t stream) const {
    out.poison(stream);
    lse.poison(stream);
}

testing::AssertionResult AttnOutputs::untouched_behind(int64_t row_count) const {
    testing::AssertionResult result =
        still_poisoned(out, row_count * dim * 2, (rows + kGuardRows) * dim * 2);
    if (!result) return result << " (outputs)";
    result = still_poisoned(lse, row_count * 4, (rows + kGuardRows) * 4);
    return result ? result : result << " (log-sum-exps)";
}

std::vector<uint16_t> AttnOutputs::read_out(int64_t row_count) const {
    std::vector<uint16_t> values(static_cast<size_t>(row_count * dim));
    read_back(out, 0, values);
    return values;
}

std::vector<float> AttnOutputs::read_lse(int64_t row_count) const {
    std::vector<float> values(static_cast<size_t>(row_count));
    read_back(lse, 0, values);
    return values;
}

AttnScratch::AttnScratch(size_t bytes)
    : bytes_(bytes), memory_(static_cast<int64_t>(bytes) + (reduced_cases() ? 0 : kGuardBytes)) {}

void AttnScratch::poison(cudaStream_t stream) const {
    memory_.poison(stream);
}

void AttnScratch::clear() const {
    EXPECT_TRUE(ok(cudaMemset(memory_.data(), 0, bytes_)));
}

testing::AssertionResult AttnScratch::guard_is_whole() const {
    return still_poisoned(memory_, static_cast<int64_t>(bytes_), memory_.bytes());
}

// ---- a case -----------------------------------------------------------------------------------

AttnDeviceCase::AttnDeviceCase(AttnVerifyMlaInputs inputs)
    : mla_(true), step_(inputs.step), shape_(inputs.shape), mla_tensors_(inputs.tensors) {
    allocate(inputs.query_bytes, inputs.kv_bytes);
    mla_tensors_.q_latent = query_->data();
    mla_tensors_.q_rope = query_->data() + inputs.rope_offset_bytes;
    mla_tensors_.kv = kv_->data();
    const auto rows = device_copy(step_.rows);
    const auto ids = device_copy(step_.query_ids);
    fill_on_device(inputs, reinterpret_cast<const CaseRow*>(rows->data()), std::ssize(step_.rows),
                   reinterpret_cast<const uint64_t*>(ids->data()), query_->data(), kv_->data());
    EXPECT_TRUE(ok(cudaDeviceSynchronize()));
}

AttnDeviceCase::AttnDeviceCase(AttnVerifyGqaCudaInputs inputs)
    : mla_(false), step_(inputs.step), shape_(inputs.shape), gqa_tensors_(inputs.tensors) {
    allocate(inputs.query_bytes, inputs.kv_bytes);
    gqa_tensors_.q = query_->data();
    gqa_tensors_.k = kv_->data();
    gqa_tensors_.v = kv_->data() + inputs.v_offset_bytes;
    const auto rows = device_copy(step_.rows);
    const auto ids = device_copy(step_.query_ids);
    fill_on_device(inputs, reinterpret_cast<const CaseRow*>(rows->data()), std::ssize(step_.rows),
                   reinterpret_cast<const uint64_t*>(ids->data()), query_->data(), kv_->data());
    EXPECT_TRUE(ok(cudaDeviceSynchronize()));
}

void AttnDeviceCase::allocate(int64_t query_bytes, int64_t kv_bytes) {
    query_ = std::make_unique<DeviceBytes>(query_bytes);
    kv_ = std::make_unique<DeviceBytes>(kv_bytes);
    context_ = device_copy(step_.context);
    node_start_ = device_copy(step_.node_start);
    tail_slots_ = device_copy(step_.tail_slots);
    ancestors_ = device_copy(step_.ancestors);
    depth_ = device_copy(step_.depth);
    pages_ = device_copy(step_.pages);
    if (!step_.pages_start.empty()) pages_start_ = device_copy(step_.pages_start);
}

void AttnDeviceCase::set_step(AttnStep step) {
    step_ = std::move(step);
    exact_ = false;
    // What the arrays held beyond the new step's nodes is poison now.
    for (const DeviceBytes* array :
         {context_.get(), node_start_.get(), tail_slots_.get(), ancestors_.get(), depth_.get()}) {
        array->poison();
    }
    context_->upload(step_.context.data(), step_.context.size() * sizeof(int32_t));
    node_start_->upload(step_.node_start.data(), step_.node_start.size() * sizeof(int32_t));
    tail_slots_->upload(step_.tail_slots.data(), step_.tail_slots.size() * sizeof(int32_t));
    ancestors_->upload(step_.ancestors.data(), step_.ancestors.size() * sizeof(uint64_t));
    depth_->upload(step_.depth.data(), step_.depth.size() * sizeof(int32_t));
    pages_->upload(step_.pages.data(), step_.pages.size() * sizeof(int32_t));
}

AttnTolerance AttnDeviceCase::tolerance() const {
    return attn_tolerance(static_cast<kdt_kv_format>(shape_.kv_format),
                          mla_ ? mla_tensors_.logit_cap : gqa_tensors_.logit_cap);
}

kdt_attn_batch AttnDeviceCase::batch(bool depth) const {
    auto ints = [](const DeviceBytes& array) {
        return reinterpret_cast<const int32_t*>(array.data());
    };
    kdt_attn_batch batch = step_.batch();
    batch.context = ints(*context_);
    batch.node_start = ints(*node_start_);
    batch.tail_slots = ints(*tail_slots_);
    batch.ancestors = reinterpret_cast<const uint64_t*>(ancestors_->data());
    batch.depth = depth ? ints(*depth_) : nullptr;
    batch.pages = ints(*pages_);
    if (pages_start_) batch.pages_start = reinterpret_cast<const int64_t*>(pages_start_->data());
    return batch;
}

kdt_status AttnDeviceCase::plan(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                                const AttnScratch& scratch, cudaStream_t stream) const {
    return kdt_attn_plan(&shape, &batch, scratch.data(), scratch.bytes(), stream);
}

kdt_status AttnDeviceCase::verify(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                                  const AttnOutputs& outputs, bool lse, const AttnScratch& scratch,
                                  cudaStream_t stream) const {
    auto* lse_data = lse ? reinterpret_cast<float*>(outputs.lse.data()) : nullptr;
    if (mla_) {
        kdt_attn_mla_tensors tensors = mla_tensors_;
        tensors.out = outputs.out.data();
        tensors.lse = lse_data;
        return kdt_attn_verify_mla(&shape, &batch, &tensors, scratch.data(), scratch.bytes(),
                                   stream);
    }
    kdt_attn_gqa_tensors tensors = gqa_tensors_;
    tensors.out = outputs.out.data();
    tensors.lse = lse_data;
    return kdt_attn_verify_gqa(&shape, &batch, &tensors, scratch.data(), scratch.bytes(), stream);
}

void AttnDeviceCase::attend_exactly(std::vector<double>& out, std::vector<double>& lse) const {
    out.assign(static_cast<size_t>(rows() * value_dim()), 0);
    lse.assign(static_cast<size_t>(rows()), 0);
    const DeviceBytes device_out(rows() * value_dim() * 8);
    const DeviceBytes device_lse(rows() * 8);
    auto* to = reinterpret_cast<double*>(device_out.data());
    auto* to_lse = reinterpret_cast<double*>(device_lse.data());
    if (mla_) {
        attn_verify_mla_reference(shape_, batch(true), mla_tensors_, step_.nodes(), to, to_lse);
    } else {
        attn_verify_gqa_reference(shape_, batch(true), gqa_tensors_, step_.nodes(), to, to_lse);
    }
    read_back(device_out, 0, out);
    read_back(device_lse, 0, lse);
}

void AttnDeviceCase::attend_on_host(std::vector<double>& out, std::vector<double>& lse) const {
    out.assign(static_cast<size_t>(rows() * value_dim()), 0);
    lse.assign(static_cast<size_t>(rows()), 0);
    std::vector<std::byte> query(static_cast<size_t>(query_->bytes()));
    std::vector<std::byte> kv(static_cast<size_t>(kv_->bytes()));
    read_back(*query_, 0, query);
    read_back(*kv_, 0, kv);
    // Where a device pointer points to in the copies.
    auto in_query = [&](const void* at) {
        return query.data() + (static_cast<const std::byte*>(at) - query_->data());
    };
    auto in_kv = [&](const void* at) {
        return kv.data() + (static_cast<const std::byte*>(at) - kv_->data());
    };
    if (mla_) {
        kdt_attn_mla_tensors tensors = mla_tensors_;
        tensors.q_latent = in_query(tensors.q_latent);
        tensors.q_rope = in_query(tensors.q_rope);
        tensors.kv = in_kv(tensors.kv);
        attn_verify_mla_ref(shape_, step_.batch(), tensors, out, lse);
    } else {
        kdt_attn_gqa_tensors tensors = gqa_tensors_;
        tensors.q = in_query(tensors.q);
        tensors.k = in_kv(tensors.k);
        tensors.v = in_kv(tensors.v);
        attn_verify_gqa_cuda_ref(shape_, step_.batch(), tensors, out, lse);
    }
}

testing::AssertionResult AttnDeviceCase::agrees(const std::vector<uint16_t>& out,
                                                const std::vector<float>& lse) {
    if (!exact_) attend_exactly(exact_out_, exact_lse_);
    exact_ = true;
    return attn_rows_agree(out, lse, exact_out_, exact_lse_,
                           {step_.nodes(), shape_.heads, value_dim()}, tolerance());
}

// ---- runs -------------------------------------------------------------------------------------

AttnRun run_attn(const AttnDeviceCase& on_device, const kdt_attn_shape& shape) {
    AttnRun run;
    auto failed = [&run](kdt_status status) {
        run.status = status;
        if (status != KDT_OK) run.message = kdt_last_error();
        return status != KDT_OK;
    };
    const bool depth = shape.mode == KDT_ATTN_DETERMINISTIC || shape.sliding_window > 0;
    const kdt_attn_batch batch = on_device.batch(depth);
    size_t bytes = 0;
    if (failed(kdt_attn_workspace_bytes(&shape, batch.requests, batch.max_nodes, batch.max_context,
                                        &bytes))) {
        return run;
    }
    const AttnScratch scratch(bytes);
    const AttnOutputs outputs(on_device.rows(), on_device.value_dim());
    const AttnOutputs next_layer(on_device.rows(), on_device.value_dim());
    const AttnOutputs cleared(on_device.rows(), on_device.value_dim());
    if (failed(on_device.plan(shape, batch, scratch, nullptr))) return run;
    if (failed(on_device.verify(shape, batch, outputs, true, scratch, nullptr))) return run;
    if (failed(on_device.verify(shape, batch, next_layer, false, scratch, nullptr))) return run;
    // Zeros look like a plan: blocks that the plan gives nothing must not begin with what is there.
    scratch.clear();
    if (failed(on_device.plan(shape, batch, scratch, nullptr))) return run;
    if (failed(on_device.verify(shape, batch, cleared, false, scratch, nullptr))) return run;
    const testing::AssertionResult finished = ok(cudaDeviceSynchronize());
    EXPECT_TRUE(finished);
    if (!finished) {
        failed(KDT_CUDA_ERROR);
        run.message = finished.message();
        return run;
    }
    run.out = outputs.read_out(on_device.rows());
    run.lse = outputs.read_lse(on_device.rows());
    EXPECT_TRUE(run.out == next_layer.read_out(on_device.rows()))
        << "the next layer, without log-sum-exp, gave other bits";
    EXPECT_TRUE(run.out == cleared.read_out(on_device.rows()))
        << "a workspace that was zeros before gave other bits";
    EXPECT_TRUE(outputs.untouched_behind(on_device.rows()));
    EXPECT_TRUE(next_layer.untouched_behind(on_device.rows()));
    EXPECT_TRUE(scratch.guard_is_whole());
    return run;
}

std::optional<kdt_attn_shape> shape_of(const AttnDeviceCase& on_device, kdt_attn_path path,
                                       kdt_attn_mode mode) {
    kdt_attn_shape shape = on_device.shape();
    shape.path = path;
    shape.mode = mode;
    if (mode == KDT_ATTN_DETERMINISTIC) {
        const int32_t deepest = on_device.step().deepest();
        if (deepest > 64) return std::nullopt;
        // Exact, or with room.
        shape.max_depth = std::min(64, deepest + (on_device.step().nodes() % 3) * 5);
    }
    return shape;
}

bool reduced_cases() {
    const char* cases = std::getenv("KDT_GPU_CASES");
    return cases != nullptr && std::strcmp(cases, "sanitizer") == 0;
}

int32_t race_repeats() {
    const char* repeats = std::getenv("KDT_GPU_REPEATS");
    if (repeats != nullptr) return std::atoi(repeats);
    return reduced_cases() ? 2 : 200;
}

const char* name_of(kdt_attn_path path) {
    if (path == KDT_PATH_WGMMA) return "wgmma";
    return path == KDT_PATH_MMA_SYNC ? "mma_sync" : "auto";
}

const char* name_of(kdt_attn_mode mode) {
    return mode == KDT_ATTN_FAST ? "fast" : "deterministic";
}

void AttnGpuTest::SetUp() {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) {
        GTEST_SKIP() << "an earlier test broke the device's context: " << cudaGetErrorString(error);
    }
}

}  // namespace kd
