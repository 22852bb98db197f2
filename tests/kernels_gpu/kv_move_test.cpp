// kv_move_cuda against its reference: every byte of every buffer.
#include <algorithm>
#include <numeric>

#include "device_array.h"
#include "kernels/cases/random.h"
#include "kernels/kv_move/kv_move_cuda.h"
#include "kernels/kv_move/kv_move_cuda_ref.h"

namespace kd {
namespace {

enum class Moves {
    disjoint,    // no slot in both lists
    permuted,    // the same slots in both lists, in cycles of any length
    chain,       // 1 -> 0, 2 -> 1, ...
    one_source,  // the same row to many places
};

struct Case {
    const char* name;
    int32_t buffers;
    int32_t slots;
    int32_t row_bytes;
    int64_t slot_stride;
    int32_t max_moves;
    int32_t moves;  // -1: max_moves, without a count on the device
    Moves kind;
};

constexpr Case kCases[] = {
    {"one", 1, 4, 16, 16, 1, -1, Moves::disjoint},
    {"commit_mla", 61, 96, 1152, 1152, 16, 16, Moves::disjoint},
    {"commit_fewer", 61, 96, 1152, 1152, 16, 3, Moves::chain},
    {"commit_none", 2, 32, 1024, 1024, 16, 0, Moves::disjoint},
    {"row_of_656", 7, 256, 656, 656, 33, -1, Moves::permuted},
    {"stride", 3, 500, 1024, 1040, 100, 77, Moves::permuted},
    {"one_source", 3, 64, 2048, 4096, 40, -1, Moves::one_source},
    {"full_block", 2, 600, 144, 144, 256, -1, Moves::chain},
    {"two_blocks", 2, 700, 272, 288, 257, -1, Moves::permuted},
    {"cluster", 3, 1100, 1152, 1152, 1024, -1, Moves::permuted},
    {"cluster_chain", 2, 1100, 576, 576, 1024, 1000, Moves::chain},
    {"cluster_few", 2, 1100, 576, 576, 1024, 5, Moves::permuted},
    {"cluster_of_two_idle", 2, 1100, 128, 128, 700, 65, Moves::permuted},
};

struct Inputs {
    Case test;
    std::vector<uint8_t> bytes;  // [buffers, slots, slot_stride]
    std::vector<int32_t> from;
    std::vector<int32_t> to;
    std::vector<int32_t> count;

    explicit Inputs(const Case& t) : test(t) {
        CaseRandom random(static_cast<uint32_t>(t.max_moves * 31 + t.row_bytes));
        bytes.resize(static_cast<size_t>(t.buffers * t.slots * t.slot_stride));
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
        const int32_t moves = t.moves < 0 ? t.max_moves : t.moves;
        count = {moves};
        std::vector<int32_t> slots(static_cast<size_t>(t.slots));
        std::iota(slots.begin(), slots.end(), 0);
        auto shuffle = [&random](auto begin, auto end) {
            for (auto at = end - begin - 1; at > 0; --at) {
                std::swap(begin[at], begin[random.below(static_cast<int32_t>(at) + 1)]);
            }
        };
        if (t.kind != Moves::chain) shuffle(slots.begin(), slots.end());
        // Behind the count stands what must not be used.
        from.assign(static_cast<size_t>(t.max_moves), -0x40000000);
        to = from;
        for (int32_t i = 0; i < moves; ++i) {
            const auto at = static_cast<size_t>(i);
            from[at] = slots[at];
            if (t.kind == Moves::disjoint) to[at] = slots[at + static_cast<size_t>(moves)];
            if (t.kind == Moves::permuted) to[at] = slots[at];
            if (t.kind == Moves::chain) {
                from[at] = i + 1;
                to[at] = i;
            }
            if (t.kind == Moves::one_source) {
                from[at] = slots[at % 3];
                to[at] = slots[at];
            }
        }
        if (t.kind == Moves::permuted) shuffle(to.begin(), to.begin() + moves);
    }

    kdt_kv_move_params params() const {
        kdt_kv_move_params p = {};
        p.struct_bytes = sizeof p;
        p.buffers = test.buffers;
        p.max_moves = test.max_moves;
        p.row_bytes = test.row_bytes;
        p.slot_stride_bytes = test.slot_stride;
        return p;
    }
    int64_t buffer_bytes() const { return test.slots * test.slot_stride; }

    std::vector<void*> bases(uint8_t* all) const {
        std::vector<void*> result;
        for (int32_t b = 0; b < test.buffers; ++b) result.push_back(all + b * buffer_bytes());
        return result;
    }

    /// `repeats` moves in a row.
    std::vector<uint8_t> expected(int32_t repeats) const {
        std::vector<uint8_t> all = bytes;
        const std::vector<void*> base = bases(all.data());
        kdt_kv_move_params p = params();
        p.buffer = base.data();
        p.from = from.data();
        p.to = to.data();
        p.move_count = count.data();
        for (int32_t i = 0; i < repeats; ++i) kv_move_cuda_ref(p);
        return all;
    }
};

/// A inputs's arrays on the device.
struct Device {
    DeviceArray<uint8_t> bytes;
    DeviceArray<void*> bases;
    DeviceArray<int32_t> from, to, count;
    kdt_kv_move_params params;

    explicit Device(const Inputs& inputs)
        : bytes(inputs.bytes),
          bases(inputs.bases(bytes.data())),
          from(inputs.from),
          to(inputs.to),
          count(inputs.count),
          params(inputs.params()) {
        params.buffer = bases.data();
        params.from = from.data();
        params.to = to.data();
        params.move_count = inputs.test.moves < 0 ? nullptr : count.data();
    }
};

using KvMoveCuda = GpuTest;

TEST_F(KvMoveCuda, AgreesWithTheReferenceInEveryByte) {
    for (const Case& test : kCases) {
        SCOPED_TRACE(test.name);
        const Inputs inputs(test);
        const Device device(inputs);
        ASSERT_TRUE(ok(kv_move_cuda(device.params, nullptr)));
        EXPECT_TRUE(same_bytes(device.bytes.read(), inputs.expected(1), test.slot_stride));
    }
}

TEST_F(KvMoveCuda, LaunchesInARowAreOrdered) {
    // Each starts while its predecessor may still be writing; the permutation turns on every time.
    for (const Case& test : {kCases[5], kCases[9]}) {
        SCOPED_TRACE(test.name);
        const Inputs inputs(test);
        const Device device(inputs);
        for (int32_t i = 0; i < 5; ++i) ASSERT_TRUE(ok(kv_move_cuda(device.params, nullptr)));
        EXPECT_TRUE(same_bytes(device.bytes.read(), inputs.expected(5), test.slot_stride));
    }
}

TEST_F(KvMoveCuda, NothingToMove) {
    kdt_kv_move_params params = {};
    params.buffers = 1;
    params.row_bytes = 16;
    EXPECT_TRUE(ok(kv_move_cuda(params, nullptr)));
}

TEST_F(KvMoveCuda, RowsBeyondFourGiB) {
    const int64_t stride = int64_t{1} << 30;
    void* far = nullptr;
    if (cudaMalloc(&far, static_cast<size_t>(6 * stride + 64)) != cudaSuccess) {
        (void)cudaGetLastError();
        GTEST_SKIP() << "less than 6 GiB of device memory";
    }
    std::vector<uint8_t> row(64);
    std::iota(row.begin(), row.end(), uint8_t{1});
    auto* base = static_cast<uint8_t*>(far);
    EXPECT_TRUE(ok(cudaMemcpy(base + 5 * stride, row.data(), 64, cudaMemcpyHostToDevice)));
    const DeviceArray<void*> bases({far});
    const DeviceArray<int32_t> from({5});
    const DeviceArray<int32_t> to({6});
    kdt_kv_move_params params = {};
    params.buffers = 1;
    params.max_moves = 1;
    params.row_bytes = 64;
    params.slot_stride_bytes = stride;
    params.buffer = bases.data();
    params.from = from.data();
    params.to = to.data();
    EXPECT_TRUE(ok(kv_move_cuda(params, nullptr)));
    std::vector<uint8_t> moved(64);
    EXPECT_TRUE(ok(cudaMemcpy(moved.data(), base + 6 * stride, 64, cudaMemcpyDeviceToHost)));
    EXPECT_EQ(moved, row);
    cudaFree(far);
}

TEST_F(KvMoveCuda, CapturedAtTheMaximumAndReplayedWithFewer) {
    Case test = kCases[9];
    test.moves = test.max_moves;
    const Inputs most(test);
    const Device device(most);
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_TRUE(ok(cudaStreamCreate(&stream)));
    ASSERT_TRUE(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    ASSERT_TRUE(ok(kv_move_cuda(device.params, stream)));
    ASSERT_TRUE(ok(cudaStreamEndCapture(stream, &graph)));
    ASSERT_TRUE(ok(cudaGraphInstantiate(&exec, graph, 0)));
    for (const int32_t moves : {0, 1, 31, 32, 33, 64, 255, 256, 257, 1023, 1024}) {
        SCOPED_TRACE(moves);
        test.moves = moves;
        const Inputs inputs(test);
        device.bytes.write(inputs.bytes);
        device.from.write(inputs.from);
        device.to.write(inputs.to);
        device.count.write(inputs.count);
        ASSERT_TRUE(ok(cudaGraphLaunch(exec, stream)));
        EXPECT_TRUE(same_bytes(device.bytes.read(), inputs.expected(1), test.slot_stride));
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

TEST_F(KvMoveCuda, ManyRepeatsOfACycleAreEqual) {
    // One turn of a permutation of 1024 slots, over and over: a write before a read would show.
    const Inputs inputs(kCases[9]);
    const Device device(inputs);
    const std::vector<uint8_t> expected = inputs.expected(1);
    // Each turn goes through the host: 5 ms.
    for (int32_t i = 0; i < std::min(race_repeats(), 200); ++i) {
        device.bytes.write(inputs.bytes);
        ASSERT_TRUE(ok(kv_move_cuda(device.params, nullptr)));
        ASSERT_TRUE(same_bytes(device.bytes.read(), expected, inputs.test.slot_stride)) << i;
    }
}

}  // namespace
}  // namespace kd
