// Times probes, attention and moves on caches whose rows lie where a layout says.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "attn_verify/cases.h"
#include "attn_verify/device.h"
#include "kv_layout/options.h"
#include "kv_layout/probe.h"
#include "kv_layout/report.h"

namespace kd::kv_layout {

template <class T>
void upload(T* to, const std::vector<T>& from) {
    bench::check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
                 "upload");
}

template <class T>
std::vector<T> download(const T* from, size_t count) {
    std::vector<T> to(count);
    bench::check(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost),
                 "download");
    return to;
}

class Bench {
  public:
    explicit Bench(const Options& options);

    /// A row for each of the layouts, of which the first and the last are "whole": for loads and
    /// for bulk copies.
    std::array<std::vector<Row>, 2> probe(RowShape shape, const Sequences& sequences,
                                          const std::vector<Layout>& layouts);
    std::vector<Row> attention(const bench::Case& c, const Sequences& sequences,
                               const std::vector<Layout>& layouts);
    /// kdt_kv_move of 1024 rows in each buffer to contiguous slots, from scattered and from
    /// contiguous ones, and one copy of as many bytes.
    std::vector<Row> move(int32_t buffers, int32_t row_bytes);

  private:
    struct Timing {
        double us = 0, us_min = 0;
        int32_t launches = 0;
    };

    /// Hands out 256-byte aligned parts of a block; base null: only counts.
    struct Parts {
        std::byte* base = nullptr;
        size_t bytes = 0;

        template <class T>
        T* take(size_t count) {
            T* const part = base ? reinterpret_cast<T*>(base + bytes) : nullptr;
            bytes += (count * sizeof(T) + 255) / 256 * 256;
            return part;
        }
    };
    struct MoveData;
    struct ProbeData;
    struct AttentionData;

    /// The block, grown to `bytes` if it is smaller.
    std::byte* memory(size_t bytes);
    /// So many pools that all of them hold more than four times the L2 in `bytes` each; at least 4.
    int32_t pools_for(double bytes) const;
    /// Of a graph of at least kLeastLaunches launches that walk through the pools.
    Timing time(int32_t pools, const std::function<void(int32_t pool)>& launch);
    static void set_timing(Row& row, const Timing& timing);

    MoveData move_data(int32_t buffers, int32_t row_bytes, std::byte* base) const;
    void move_rows(const MoveData& at, int32_t launch);

    ProbeData probe_data(RowShape shape, const Sequences& sequences, int32_t pool_slots,
                         int32_t digests, std::byte* base) const;
    /// Fills in the times; returns the digest of each pool.
    std::vector<uint32_t> run_probe(const ProbeLaunch& launch, const ProbeData& at, int32_t tokens,
                                    Row& row);

    AttentionData attention_data(const bench::Case& c, const Sequences& sequences,
                                 const Layout& largest, std::byte* base) const;
    /// Rows, queries and tables that no layout changes.
    void fill(const bench::Case& c, const Sequences& sequences, const AttentionData& at);
    kdt_attn_batch place(const bench::Case& c, const Sequences& sequences, const Layout& layout,
                         const AttentionData& at);
    void verify(const bench::Case& c, const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                const AttentionData& at, int32_t pool);

    Options options_;
    size_t l2_bytes_ = 0;
    bench::Stream stream_;
    std::unique_ptr<bench::DeviceMemory> memory_;
};

}  // namespace kd::kv_layout
