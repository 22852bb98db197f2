#include "attn_device.h"

#include <algorithm>
#include <cstdio>

#include "attn_reference.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_ref.h"
#include "kernels/attn_verify_mla/attn_verify_mla_ref.h"

namespace kd {

namespace {

constexpr int64_t kGuardRows = 80;  // more than a row tile
constexpr int64_t kGuardBytes = 4096;

template <class T>
int64_t bytes_of(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
}

template <class T>
std::unique_ptr<DeviceBytes> device_copy(const std::vector<T>& values) {
    auto copy = std::make_unique<DeviceBytes>(bytes_of(values));
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

// ---- a step -----------------------------------------------------------------------------------

AttnDeviceBatch::AttnDeviceBatch(const AttnStep& step)
    : context_(bytes_of(step.context)),
      node_start_(bytes_of(step.node_start)),
      tail_slots_(bytes_of(step.tail_slots)),
      ancestors_(bytes_of(step.ancestors)),
      depth_(bytes_of(step.depth)),
      pages_(bytes_of(step.pages)),
      pages_start_(bytes_of(step.pages_start)) {
    write(step);
}

void AttnDeviceBatch::write(const AttnStep& step) {
    const auto replace = [](const DeviceBytes& array, const auto& values) {
        array.poison();
        array.upload(values.data(), values.size() * sizeof values[0]);
    };
    replace(context_, step.context);
    replace(node_start_, step.node_start);
    replace(tail_slots_, step.tail_slots);
    replace(ancestors_, step.ancestors);
    replace(depth_, step.depth);
    replace(pages_, step.pages);
    replace(pages_start_, step.pages_start);
}

kdt_attn_batch AttnDeviceBatch::view(const AttnStep& step, bool depth) const {
    const auto ints = [](const DeviceBytes& array) {
        return reinterpret_cast<const int32_t*>(array.data());
    };
    kdt_attn_batch batch = step.batch();
    batch.context = ints(context_);
    batch.node_start = ints(node_start_);
    batch.tail_slots = ints(tail_slots_);
    batch.ancestors = reinterpret_cast<const uint64_t*>(ancestors_.data());
    batch.depth = depth ? ints(depth_) : nullptr;
    batch.pages = ints(pages_);
    if (batch.pages_start != nullptr) {
        batch.pages_start = reinterpret_cast<const int64_t*>(pages_start_.data());
    }
    return batch;
}

kdt_attn_batch batch_at(const void* arrays, int32_t requests, int32_t max_nodes,
                        int32_t max_context) {
    const auto* ints = static_cast<const int32_t*>(arrays);
    return {.struct_bytes = sizeof(kdt_attn_batch),
            .requests = requests,
            .max_nodes = max_nodes,
            .max_context = max_context,
            .page_size = 16,
            .context = ints,
            .node_start = ints,
            .tail_slots = ints,
            .ancestors = static_cast<const uint64_t*>(arrays),
            .depth = ints,
            .pages = ints,
            .pages_start = nullptr,
            .pages_stride = max_context / 16 + 1};
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
    batch_ = std::make_unique<AttnDeviceBatch>(step_);
}

void AttnDeviceCase::set_step(AttnStep step) {
    step_ = std::move(step);
    exact_ = false;
    batch_->write(step_);
}

void AttnDeviceCase::set_query(int32_t node, int32_t head, uint16_t bits) {
    const int64_t value =
        mla_ ? node * mla_tensors_.q_latent_node_stride + head * mla_tensors_.q_latent_head_stride
             : node * gqa_tensors_.q_node_stride + head * gqa_tensors_.q_head_stride;
    EXPECT_TRUE(
        ok(cudaMemcpy(query_->data() + 2 * value, &bits, sizeof bits, cudaMemcpyHostToDevice)));
    exact_ = false;
}

void AttnDeviceCase::rewrite_late(cudaStream_t stream) {
    if (!saved_query_) {
        const auto saved = [](const DeviceBytes& of) {
            auto copy = std::make_unique<DeviceBytes>(of.bytes());
            EXPECT_TRUE(ok(cudaMemcpy(copy->data(), of.data(), static_cast<size_t>(of.bytes()),
                                      cudaMemcpyDeviceToDevice)));
            EXPECT_TRUE(ok(cudaDeviceSynchronize()));
            return copy;
        };
        saved_query_ = saved(*query_);
        saved_kv_ = saved(*kv_);
    }
    query_->poison(stream);
    const int64_t slot_bytes = (mla_ ? mla_tensors_.kv_slot_stride : gqa_tensors_.kv_slot_stride) *
                               (shape_.kv_format == KDT_KV_BF16 ? 2 : 1);
    for (const void* of : {mla_tensors_.kv, gqa_tensors_.k, gqa_tensors_.v}) {
        if (of == nullptr) continue;
        const int64_t first = static_cast<const std::byte*>(of) - kv_->data();
        for (const int32_t slot : step_.tail_slots) {
            EXPECT_TRUE(ok(cudaMemsetAsync(kv_->data() + first + slot * slot_bytes, 0xff,
                                           static_cast<size_t>(slot_bytes), stream)));
        }
    }
    copy_late({saved_query_->data(), query_->data(), query_->bytes()},
              {saved_kv_->data(), kv_->data(), kv_->bytes()}, stream);
}

AttnTolerance AttnDeviceCase::tolerance() const {
    return attn_tolerance(static_cast<kdt_kv_format>(shape_.kv_format));
}

kdt_attn_batch AttnDeviceCase::batch(bool depth) const {
    return batch_->view(step_, depth);
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
    if (!reduced_cases()) {
        if (failed(on_device.verify(shape, batch, next_layer, false, scratch, nullptr))) return run;
        // Zeros look like a plan: blocks that the plan gives nothing must not begin with what is
        // there.
        scratch.clear();
        if (failed(on_device.plan(shape, batch, scratch, nullptr))) return run;
        if (failed(on_device.verify(shape, batch, cleared, false, scratch, nullptr))) return run;
    }
    const testing::AssertionResult finished = ok(cudaDeviceSynchronize());
    EXPECT_TRUE(finished);
    if (!finished) {
        failed(KDT_CUDA_ERROR);
        run.message = finished.message();
        return run;
    }
    run.out = outputs.read_out(on_device.rows());
    run.lse = outputs.read_lse(on_device.rows());
    EXPECT_TRUE(outputs.untouched_behind(on_device.rows()));
    EXPECT_TRUE(scratch.guard_is_whole());
    if (reduced_cases()) return run;
    EXPECT_TRUE(run.out == next_layer.read_out(on_device.rows()))
        << "the next layer, without log-sum-exp, gave other bits";
    EXPECT_TRUE(run.out == cleared.read_out(on_device.rows()))
        << "a workspace that was zeros before gave other bits";
    EXPECT_TRUE(next_layer.untouched_behind(on_device.rows()));
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

bool served(const AttnDeviceCase& on_device, const kdt_attn_shape& shape) {
    const AttnRun run = run_attn(on_device, shape);
    EXPECT_TRUE(run.status == KDT_OK || run.status == KDT_UNSUPPORTED) << run.message;
    if (run.status == KDT_UNSUPPORTED) {
        std::printf("skipped: %s, %s: %s\n", name_of(static_cast<kdt_attn_path>(shape.path)),
                    name_of(static_cast<kdt_attn_mode>(shape.mode)), run.message.c_str());
    }
    return run.status == KDT_OK;
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
