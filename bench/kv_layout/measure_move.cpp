#include <cstddef>

#include "attn_verify/data.h"
#include "kv_layout/measure.h"

namespace kd::kv_layout {

using bench::check;

namespace {

constexpr int32_t kMoves = 1024;  // the most of one launch

}  // namespace

/// Where the data of a move lies in the memory block. Each launch has moves of its own.
struct Bench::MoveData {
    int32_t buffers = 0;
    int32_t row_bytes = 0;
    int32_t launches = 0;
    int32_t slots = 0;  // of a buffer
    size_t buffer_bytes = 0;
    std::byte* pool = nullptr;  // [buffers]
    void** bases = nullptr;     // [buffers]
    int32_t* from = nullptr;    // [launches, kMoves]
    int32_t* to = nullptr;
    uint32_t* different = nullptr;
    size_t bytes = 0;

    int32_t moves() const { return launches * kMoves; }
    size_t pool_bytes() const { return static_cast<size_t>(buffers) * buffer_bytes; }
};

Bench::MoveData Bench::move_data(int32_t buffers, int32_t row_bytes, std::byte* base) const {
    MoveData at{.buffers = buffers, .row_bytes = row_bytes};
    Parts parts{.base = base};
    at.launches = pools_for(double(buffers) * kMoves * row_bytes);
    // A quarter of the other pools' slots: there are many buffers.
    at.slots = pool_slots_for(at.moves(), options_.pool_slots / 4);
    at.buffer_bytes = static_cast<size_t>(at.slots) * static_cast<size_t>(row_bytes);
    at.pool = parts.take<std::byte>(at.pool_bytes());
    at.bases = parts.take<void*>(static_cast<size_t>(buffers));
    at.from = parts.take<int32_t>(static_cast<size_t>(at.moves()));
    at.to = parts.take<int32_t>(static_cast<size_t>(at.moves()));
    at.different = parts.take<uint32_t>(1);
    at.bytes = parts.bytes;
    return at;
}

void Bench::move_rows(const MoveData& at, int32_t launch) {
    kdt_kv_move_params params{};
    params.struct_bytes = sizeof(params);
    params.buffers = at.buffers;
    params.max_moves = kMoves;
    params.row_bytes = at.row_bytes;
    params.slot_stride_bytes = at.row_bytes;
    params.buffer = at.bases;
    params.from = at.from + int64_t{launch} * kMoves;
    params.to = at.to + int64_t{launch} * kMoves;
    if (kdt_kv_move(&params, stream_.get()) != KDT_OK) {
        throw std::runtime_error(std::string("kdt_kv_move: ") + kdt_last_error());
    }
}

std::vector<Row> Bench::move(int32_t buffers, int32_t row_bytes) {
    const size_t bytes = move_data(buffers, row_bytes, nullptr).bytes;
    const MoveData at = move_data(buffers, row_bytes, memory(bytes));
    std::vector<void*> bases;
    for (size_t b = 0; b < static_cast<size_t>(buffers); ++b) {
        bases.push_back(at.pool + b * at.buffer_bytes);
    }
    upload(at.bases, bases);
    // Targets are the first slots; sources are among the others.
    const int32_t moves = at.moves();
    const Sequences sources = sequences_of(1, moves);
    upload(at.to, sources.row);

    const size_t copy_bytes =
        static_cast<size_t>(buffers) * kMoves * static_cast<size_t>(row_bytes);
    const Row shared{.part = "move",
                     .op = "kv_move",
                     .kv_dtype = "bytes",
                     .row_bytes = row_bytes,
                     .buffers = buffers,
                     .tokens = kMoves,
                     .pool_slots = at.slots,
                     .pools = at.launches,
                     .bytes = 2.0 * double(copy_bytes)};
    std::vector<Row> result;
    for (Layout layout :
         {random_runs(sources, at.slots - moves, 1), whole(sources, at.slots - moves)}) {
        for (int32_t& slot : layout.slot) slot += moves;
        layout.pool_slots = at.slots;
        upload(at.from, layout.slot);
        bench::fill_queries(at.pool, static_cast<int64_t>(at.pool_bytes() / 2), 9, stream_.get());
        Row row = shared;
        set_timing(row, time(at.launches, [&](int32_t launch) { move_rows(at, launch); }));
        check(cudaMemsetAsync(at.different, 0, sizeof(uint32_t), stream_.get()), "clearing");
        for (void* const buffer : bases) {
            compare_rows(static_cast<const std::byte*>(buffer), at.from, at.to, moves, row_bytes,
                         at.different, stream_.get());
        }
        stream_.wait();
        row.same_output = download(at.different, 1)[0] == 0;
        describe(sources, layout, row);
        result.push_back(row);
    }
    // As many bytes in one piece, from the upper half of the pool to the lower.
    Row copy = shared;
    copy.op = "memcpy";
    copy.layout = "copy";
    copy.mean_run = kMoves;
    copy.contiguous_tiles = 1;
    copy.same_output = true;
    set_timing(copy, time(at.launches, [&](int32_t launch) {
                   std::byte* const to = at.pool + static_cast<size_t>(launch) * copy_bytes;
                   check(cudaMemcpyAsync(to, to + at.pool_bytes() / 2, copy_bytes,
                                         cudaMemcpyDeviceToDevice, stream_.get()),
                         "cudaMemcpyAsync");
               }));
    result.push_back(copy);
    for (Row& row : result) row.ratio = row.us / copy.us;
    return result;
}

}  // namespace kd::kv_layout
