// Index arithmetic of the GQA verify kernels: where a 16-byte chunk lies in shared memory, which
// dimension or column a thread's fragment holds, which keys of a tile a row sees. Plain functions,
// so that they are tested without a device.
#pragma once

#include <cstdint>

namespace kd::gqa {

/// 16-bit operands (Q, bf16 K and V, converted fp8 K and V): [dims / 64][rows][128 bytes], each row
/// of 8 chunks of 16 bytes permuted by its number: the 128-byte swizzle of wgmma's descriptors,
/// and free of bank conflicts for ldmatrix. The base is a multiple of 1024 bytes. `chunk` counts
/// over all dims, 8 values each.
constexpr uint32_t half_offset(int32_t rows, int32_t row, int32_t chunk) {
    return static_cast<uint32_t>((chunk / 8 * rows + row) * 128 + (((chunk ^ row) & 7) << 4));
}

/// Bytes from one row of raw e4m3 values to the next: whole 128-byte columns, the last of 96 dims
/// not used up.
constexpr int32_t raw_pitch(int32_t head_dim) {
    return head_dim == 96 ? 128 : head_dim;
}

/// Raw e4m3 K or V, rows of raw_pitch: 256 dims are two columns of 128 bytes as above, 64 dims rows
/// of 64 bytes, so that chunk c of 8 consecutive rows lies in 8 different bank groups. `chunk`
/// holds 16 values.
constexpr uint32_t raw_offset(int32_t head_dim, int32_t rows, int32_t row, int32_t chunk) {
    if (head_dim == 64) return static_cast<uint32_t>(row * 64 + (chunk ^ (row / 2 & 3)) * 16);
    return half_offset(rows, row, chunk);
}

/// mma.sync on e4m3: a thread converts 4 neighbouring dims of K at a time, which are 2 pairs of one
/// k-step of 16: pair j of the instruction is pair paired_source(j) of the row, for K as converted
/// and for Q as stored.
constexpr int32_t paired_source(int32_t pair) {
    return pair < 4 ? 2 * pair : 2 * (pair - 4) + 1;
}

/// wgmma shared-memory descriptor, 128-byte swizzle. K-major operands (K, Q): `stride` is from 8
/// rows to the next 8, `leading` is unused. MN-major operands (V): `leading` is from 64 columns to
/// the next 64, `stride` from 8 keys to the next 8.
constexpr uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes,
                                    uint32_t stride_bytes) {
    return (uint64_t{address & 0x3FFFF} >> 4) | uint64_t{leading_bytes >> 4} << 16 |
           uint64_t{stride_bytes >> 4} << 32 | uint64_t{1} << 62;
}

/// The same for a place `bytes` further in shared memory: addresses never carry into the upper
/// word.
constexpr uint64_t descriptor_at(uint64_t descriptor, uint32_t bytes) {
    return (descriptor >> 32 << 32) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

/// RowVisibility (attn_batch.cuh) of one row, as the kernel keeps it in shared memory.
struct RowRange {
    int32_t first;
    int32_t limit;
    uint64_t ancestors[2];
};
static_assert(sizeof(RowRange) == 24);

/// Keys of a tile as a thread of a quad has them in its scores: bit 2 n + e is key 8 n + 2 quad + e
/// of the tile, n < 8. Here the first `keys` of the tile, for any number.
constexpr uint32_t first_columns(int32_t keys, int32_t quad) {
    const int32_t most = keys - 2 * quad;
    const uint32_t own = most < 0 ? 0 : most > 64 ? 64 : static_cast<uint32_t>(most);
    const uint32_t rest = own % 8;
    return (1u << (own / 8 * 2 + (rest < 2 ? rest : 2))) - 1;
}
/// Of the tile that begins at `key_begin` the keys within [first, limit), and below `end`.
constexpr uint32_t visible_columns(const RowRange& row, int32_t key_begin, int32_t end,
                                   int32_t quad) {
    const int32_t limit = row.limit < end ? row.limit : end;
    return first_columns(limit - key_begin, quad) & ~first_columns(row.first - key_begin, quad);
}

/// Bit i: the row sees node `node` + i of the tree. The ancestor bits of a row whose keys end below
/// the context are empty, so no key is both such a node and within [first, limit).
constexpr uint64_t visible_nodes(const RowRange& row, int32_t node) {
    if (node <= -64 || node >= 128) return 0;
    if (node < 0) return row.ancestors[0] << -node;
    if (node == 0) return row.ancestors[0];
    if (node < 64) return row.ancestors[0] >> node | row.ancestors[1] << (64 - node);
    return row.ancestors[1] >> (node - 64);
}
/// The columns of a thread, as first_columns() numbers them, of such bits.
constexpr uint32_t columns_of(uint64_t bits, int32_t quad) {
    uint32_t columns = 0;
    for (int32_t word = 0; word < 2; ++word) {
        // Two bits of each byte move together, in two steps.
        uint32_t pairs = static_cast<uint32_t>(bits >> (32 * word + 2 * quad)) & 0x03030303;
        pairs |= pairs >> 6;
        columns |= ((pairs & 15) | (pairs >> 12 & 0xf0)) << (8 * word);
    }
    return columns;
}

}  // namespace kd::gqa
