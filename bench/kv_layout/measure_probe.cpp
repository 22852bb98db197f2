#include <algorithm>
#include <numeric>

#include "attn_verify/data.h"
#include "kv_layout/measure.h"

namespace kd::kv_layout {

using bench::check;

namespace {

/// The slots of all positions, request after request.
std::vector<int32_t> slots_of(const Sequences& sequences, const Layout& layout) {
    std::vector<int32_t> slots;
    for (const int32_t row : sequences.row) {
        slots.push_back(layout.slot[static_cast<size_t>(row)]);
    }
    return slots;
}

}  // namespace

/// Where the data of a probe lies in the memory block.
struct Bench::ProbeData {
    int32_t pools = 0;
    int32_t parts = 0;  // pools x planes
    size_t rows_bytes = 0, plane_bytes = 0;
    std::byte* rows = nullptr;    // [parts] rows in order
    std::byte* planes = nullptr;  // [parts] the same rows in their slots
    int32_t* row_slots = nullptr;
    int32_t* slots = nullptr;    // [positions]
    uint32_t* digest = nullptr;  // [pools, digests]
    size_t bytes = 0;
};

Bench::ProbeData Bench::probe_data(RowShape shape, const Sequences& sequences, int32_t pool_slots,
                                   int32_t digests, std::byte* base) const {
    ProbeData at;
    Parts parts{.base = base};
    const auto row_bytes = static_cast<size_t>(row_bytes_of(shape));
    const int32_t planes = planes_of(shape);
    at.pools = pools_for(double(sequences.rows) * double(row_bytes) * planes);
    at.parts = at.pools * planes;
    at.rows_bytes = static_cast<size_t>(sequences.rows) * row_bytes;
    at.plane_bytes = static_cast<size_t>(pool_slots) * row_bytes;
    at.rows = parts.take<std::byte>(static_cast<size_t>(at.parts) * at.rows_bytes);
    at.planes = parts.take<std::byte>(static_cast<size_t>(at.parts) * at.plane_bytes);
    at.row_slots = parts.take<int32_t>(static_cast<size_t>(sequences.rows));
    at.slots = parts.take<int32_t>(sequences.row.size());
    at.digest = parts.take<uint32_t>(static_cast<size_t>(at.pools) * static_cast<size_t>(digests));
    at.bytes = parts.bytes;
    return at;
}

std::vector<uint32_t> Bench::run_probe(const ProbeLaunch& launch, const ProbeData& at,
                                       int32_t tokens, Row& row) {
    const auto digests = static_cast<size_t>(launch.digests);
    const size_t words = static_cast<size_t>(at.pools) * digests;
    check(cudaMemsetAsync(at.digest, 0, words * sizeof(uint32_t), stream_.get()), "clearing");
    const int32_t planes = planes_of(launch.shape);
    set_timing(row, time(at.pools, [&](int32_t pool) {
                   ProbeInputs inputs{.plane = {},
                                      .slots = at.slots,
                                      .tokens = tokens,
                                      .digest = at.digest + static_cast<size_t>(pool) * digests};
                   for (int32_t plane = 0; plane < planes; ++plane) {
                       const auto part = static_cast<size_t>(pool * planes + plane);
                       inputs.plane[plane] = at.planes + part * at.plane_bytes;
                   }
                   kv_layout::probe(launch, inputs, stream_.get());
               }));
    const std::vector<uint32_t> parts = download(at.digest, words);
    std::vector<uint32_t> sums;
    for (size_t first = 0; first < words; first += digests) {
        const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(first);
        sums.push_back(std::accumulate(begin, begin + launch.digests, uint32_t{0}));
    }
    return sums;
}

std::array<std::vector<Row>, 2> Bench::probe(RowShape shape, const Sequences& sequences,
                                             const std::vector<Layout>& layouts) {
    const ProbeLaunch launches[] = {probe_launch(shape, Loader::loads),
                                    probe_launch(shape, Loader::bulk)};
    const int32_t digests = std::max(launches[0].digests, launches[1].digests);
    const int32_t pool_slots = layouts.front().pool_slots;
    const size_t bytes = probe_data(shape, sequences, pool_slots, digests, nullptr).bytes;
    const ProbeData at = probe_data(shape, sequences, pool_slots, digests, memory(bytes));
    const auto tokens = static_cast<int32_t>(sequences.row.size());
    bench::fill_queries(at.rows, static_cast<int64_t>(at.parts * at.rows_bytes / 2), 5,
                        stream_.get());
    std::array<std::vector<Row>, 2> result;
    std::vector<uint32_t> expected;  // of both loaders
    for (const Layout& layout : layouts) {
        upload(at.row_slots, layout.slot);
        upload(at.slots, slots_of(sequences, layout));
        for (size_t part = 0; part < static_cast<size_t>(at.parts); ++part) {
            place_rows(at.rows + part * at.rows_bytes, at.planes + part * at.plane_bytes,
                       at.row_slots, sequences.rows, row_bytes_of(shape), stream_.get());
        }
        stream_.wait();
        for (size_t i = 0; i < result.size(); ++i) {
            Row row{.part = "probe",
                    .op = launches[i].loader == Loader::loads ? "gather_loads" : "gather_bulk",
                    .kv_dtype = row_shape_name(shape),
                    .row_bytes = row_bytes_of(shape),
                    .buffers = planes_of(shape),
                    .tokens = tokens,
                    .tile_rows = launches[i].tile_rows,
                    .pools = at.pools,
                    .bytes = double(tokens) * planes_of(shape) * row_bytes_of(shape)};
            const std::vector<uint32_t> sums = run_probe(launches[i], at, tokens, row);
            if (expected.empty()) expected = sums;
            row.same_output = sums == expected;
            describe(sequences, layout, row);
            result[i].push_back(row);
        }
    }
    for (std::vector<Row>& rows : result) compare_with_whole(rows);
    return result;
}

}  // namespace kd::kv_layout
