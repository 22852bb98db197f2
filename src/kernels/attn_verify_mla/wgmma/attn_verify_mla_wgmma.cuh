// The sm_90a main loop of attn_verify_mla: one block of four warpgroups a multiprocessor.
//
//   load        gathers the latent rows of 48 keys a stage (cp.async, one row at a time, whatever
//               the page size) into one of three stages;
//   score       S = Q K^T, softmax, P to shared memory;
//   accumulate  two warpgroups, each O[64 rows, 256 columns] += P V of its half of the latent; of a
//               segment that two blocks share, each 128 columns of the block's half.
//
// Tensor cores stay busy because the score of the next tile runs beside the accumulation of this
// one. The softmax keeps a row's reference maximum until a score exceeds it by kLazyRescale powers
// of two, so that O is rescaled rarely; the decision is the row's own, so its result depends on
// nothing but its keys.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_query.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- load -------------------------------------------------------------------------------------

__device__ __forceinline__ void load(const AttnVerifyMlaParams& p, uint32_t shared,
                                     int32_t thread) {
    const int32_t unit16 = thread % 8;  // of each 128-byte piece
    const auto* const kv = static_cast<const std::byte*>(p.kv) + unit16 * 16;
    const FirstSlots<kKeys, 3> first(p.workspace, thread);
    const uint64_t policy = ptx::evict_first_policy();
    TileWalk<kKeys> walk(p);
    TileRow now = look_up(walk, thread, &first.slot[0]);
    TileRow next = look_up(walk, thread, &first.slot[1]);
    TileRow later = look_up(walk, thread, &first.slot[2]);
    bool waited = false;
    Turn<kStages> turn{0};
    for (; now.live; ++turn.count) {
        const int32_t lane_slot = now.slot();
        // Let Q be asked for in between, or it would queue behind all stages.
        if (turn.count == 1) ptx::named_barrier_sync(kQueryBarrier, 256);
        if (now.fresh && !waited) {
            ptx::grid_dependency_wait();
            waited = true;
        }
        ptx::mbarrier_wait(shared + kBarrierEmpty + 8 * turn.stage(), turn.parity() ^ 1);
        const uint32_t stage = shared + kKv + turn.stage() * kTileBytes;
#pragma unroll
        for (int32_t step = 0; step < kKeys / 16; ++step) {
            const int32_t slot = __shfl_sync(0xffffffff, lane_slot, step * 4 + thread % 32 / 8);
            const bool valid = slot >= 0;
            const std::byte* row = kv + (valid ? slot * p.kv_slot_bytes : 0);
            const uint32_t to = stage + copy_offset(copy_row<kKeys>(thread, step), unit16);
#pragma unroll
            for (int32_t chunk = 0; chunk < kChunks; ++chunk)
                ptx::copy_async_16(to + chunk * kChunkBytes, row + chunk * 128, valid, policy);
        }
        ptx::mbarrier_arrive_on_copies(shared + kBarrierFull + 8 * turn.stage());
        now = next;
        next = later;
        later = look_up(walk, thread);
    }
    if (turn.count == 1) ptx::named_barrier_sync(kQueryBarrier, 256);  // somebody has arrived
}

// ---- score ------------------------------------------------------------------------------------

/// Running softmax of one row; `sum` is this thread's share of it.
struct RowState {
    float maximum = -INFINITY;  // reference: at most kLazyRescale below the true maximum
    float sum = 0.0f;

    /// Takes the row's maximum over a tile; returns the factor of what was summed before.
    __device__ float update(float tile_maximum) {
        if (!(tile_maximum > maximum + kLazyRescale)) return 1.0f;
        const float factor = ptx::exp2_approx(maximum - tile_maximum);
        maximum = tile_maximum;
        sum *= factor;
        return factor;
    }
    __device__ float base() const { return maximum == -INFINITY ? 0.0f : maximum; }
};

/// S of a tile: rows r and r + 8 of this thread, 2 of every 8 keys.
using Scores = float[kKeys / 2];

/// tanh(s * scale / cap), from an exponential: tanh.approx is too coarse for scores.
__device__ __forceinline__ void cap_scores(const AttnVerifyMlaParams& p, Scores& s) {
    constexpr float kTwoLog2E = 2.8853900817779268f;
    const float inner = p.scale / p.logit_cap * kTwoLog2E;
#pragma unroll
    for (float& x : s) x = 1.0f - __fdividef(2.0f, 1.0f + ptx::exp2_approx(x * inner));
}

/// What a row sees of a tile that begins `tail` keys behind the context (or before: negative), in
/// fast mode: bit c for the tile's key c. `ancestors`: the node's words.
__device__ __forceinline__ uint64_t tail_mask(uint64_t low, uint64_t high, int32_t tail) {
    if (tail <= 0) return low << -tail | ((uint64_t{1} << -tail) - 1);
    return tail < 64 ? low >> tail | high << 1 << (63 - tail) : high >> (tail - 64);
}

/// Fast mode: the mask of a tile that reaches beyond the context. The rows' ancestors are at
/// `masks` in shared memory: in the step's last tiles it is what all others wait for.
__device__ __forceinline__ void mask_tail(uint32_t masks, const WorkUnit& unit, int32_t key,
                                          int32_t row, Scores& s) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const uint4 words = ptx::load_shared_128(masks + (row + 8 * half) * 16);
        uint64_t seen = tail_mask(words.x | uint64_t{words.y} << 32,
                                  words.z | uint64_t{words.w} << 32, key - unit.context);
        seen &= ~uint64_t{0} >> (64 - min(unit.key_end - key, 64));
        seen >>= threadIdx.x % 4 * 2;
        const auto low = static_cast<uint32_t>(seen);
        const auto high = static_cast<uint32_t>(seen >> 32);
#pragma unroll
        for (int32_t i = 0; i < kKeys / 2; ++i) {
            if ((i >> 1 & 1) != half) continue;
            const int32_t column = i / 4 * 8 + i % 2;
            if (((column < 32 ? low : high) >> column % 32 & 1) == 0) s[i] = -INFINITY;
        }
    }
}

/// Deterministic mode: which keys of a unit this thread's two rows see.
struct SeenKeys {
    int32_t depth[2] = {};  // in flight until a tile is masked
    int32_t begin[2] = {};  // of a path unit: where the row's own path begins

    __device__ SeenKeys(const AttnVerifyMlaParams& p, const WorkUnit& unit, int32_t row) {
        if (unit.is_fast()) return;
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            const int32_t node = (unit.row_begin + min(row + 8 * half, unit.rows - 1)) / p.heads;
            depth[half] = p.batch.depth[unit.first_node + node];
            if (unit.path_node >= 0) begin[half] = (node - unit.path_node) * p.batch.path_keys;
        }
    }

    /// Of the tile that begins at `key`.
    __device__ __forceinline__ void mask(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                         int32_t key, Scores& s) const {
        const int32_t own = key + threadIdx.x % 4 * 2;
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            const int32_t position = unit.context + depth[half];
            const int32_t boundary = path_boundary(position, p.batch.max_depth);
            const int32_t end = unit.path_node >= 0 ? begin[half] + position + 1 - boundary
                                                    : min(boundary, unit.key_end);
#pragma unroll
            for (int32_t i = 0; i < kKeys / 2; ++i) {
                if ((i >> 1 & 1) != half) continue;
                const int32_t column = i / 4 * 8 + i % 2;
                if (column < begin[half] - own || column >= end - own) s[i] = -INFINITY;
            }
        }
    }
};

/// S = Q K^T of the tile at `k_tile`; calls `between` when kHandOverAfter of its products are under
/// way.
template <class Between>
__device__ __forceinline__ void compute_scores(uint32_t shared, uint32_t k_tile,
                                               const QueryRegisters& q, Scores& s,
                                               const Between& between) {
    const uint64_t keys = wgmma::k_major(k_tile);
    const uint64_t query = wgmma::k_major(shared + kQ);
    wgmma::fence();
#pragma unroll
    for (int32_t step = 0; step < kSharedChunks * 4; ++step)
        wgmma::ss_n48(s, query + step / 4 * (kQChunkBytes >> 4) + step % 4 * 2,
                      keys + (kRegisterChunks + step / 4) * (kChunkBytes >> 4) + step % 4 * 2,
                      step > 0);
#pragma unroll
    for (int32_t step = 0; step < kRegisterChunks * 4; ++step) {
        if (step == kHandOverAfter - kSharedChunks * 4) between();
        wgmma::rs_n48(s, q[step], keys + step / 4 * (kChunkBytes >> 4) + step % 4 * 2, true);
    }
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::touch(s);
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/// The score warpgroup, one unit after the other.
struct ScoreRole {
    const AttnVerifyMlaParams& p;
    uint32_t shared;
    int32_t thread;
    float* row_scale;
    float* row_inverse;
    int32_t* rescale_flag;
    float to_log2;
    uint32_t p_row;  // where this lane's row of P goes for the first two groups of 8 keys
    int32_t first_row;
    Turn<kStages> turn{0};
    uint32_t published = 0;  // tiles

    __device__ ScoreRole(const AttnVerifyMlaParams& params, std::byte* memory, uint32_t address,
                         int32_t of_role)
        : p(params),
          shared(address),
          thread(of_role),
          row_scale(reinterpret_cast<float*>(memory + kRowScale)),
          row_inverse(reinterpret_cast<float*>(memory + kRowInverse)),
          rescale_flag(reinterpret_cast<int32_t*>(memory + kRescaleFlag)),
          to_log2(score_factor(params, params.scale)) {
        // Lane l addresses row l % 8 of matrix l / 8: rows 0-7 and 8-15 of the first 8 keys, then
        // of the next 8.
        const int32_t lane = thread % 32;
        const int32_t p_rows = thread / 32 * 16 + lane % 16;
        p_row = shared + kP + copy_offset(p_rows, lane / 16);
        first_row = thread / 32 * 16 + lane / 4;
        // Kept, not computed anew where P is handed over: the accumulation waits for that.
        asm volatile("" : "+r"(p_row), "+r"(first_row));
    }

    __device__ int32_t row() const { return first_row; }  // and row + 8
    __device__ uint32_t full(Turn<kStages> of) const {
        return shared + kBarrierFull + 8 * of.stage();
    }

    /// Softmax of one tile: its P, packed, and the factor of what was accumulated before it.
    struct Published {
        uint32_t p[kKeys / 8][2];
        float factor[2];
    };

    __device__ __forceinline__ Published soften(Scores& s, RowState (&rows)[2]) const {
        float maximum[2][4];  // four chains a row: one warp a scheduler has nothing else to do
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            maximum[0][i] = fmaxf(s[4 * i], s[4 * i + 1]);
            maximum[1][i] = fmaxf(s[4 * i + 2], s[4 * i + 3]);
        }
#pragma unroll
        for (int32_t j = 4; j < kKeys / 8; ++j) {
            maximum[0][j % 4] = fmaxf(maximum[0][j % 4], fmaxf(s[4 * j], s[4 * j + 1]));
            maximum[1][j % 4] = fmaxf(maximum[1][j % 4], fmaxf(s[4 * j + 2], s[4 * j + 3]));
        }
        Published out;
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) {
            const float top =
                fmaxf(fmaxf(maximum[r][0], maximum[r][1]), fmaxf(maximum[r][2], maximum[r][3]));
            out.factor[r] = rows[r].update(quad_max(top) * to_log2);
        }
        const float base[2] = {rows[0].base(), rows[1].base()};
        float sum[2][2] = {};  // two short chains a row
#pragma unroll
        for (int32_t i = 0; i < kKeys / 2; ++i) {
            s[i] = ptx::exp2_approx(__fmaf_rn(s[i], to_log2, -base[i >> 1 & 1]));
            sum[i >> 1 & 1][i & 1] += s[i];
        }
        rows[0].sum += sum[0][0] + sum[0][1];
        rows[1].sum += sum[1][0] + sum[1][1];
#pragma unroll
        for (int32_t j = 0; j < kKeys / 8; ++j) {
            out.p[j][0] = ptx::pack_bf16(s[4 * j], s[4 * j + 1]);
            out.p[j][1] = ptx::pack_bf16(s[4 * j + 2], s[4 * j + 3]);
            // Packed here, not when it is published: by then s is another tile's.
            asm volatile("" : "+r"(out.p[j][0]), "+r"(out.p[j][1]));
        }
        return out;
    }

    /// Hands the P of a tile to the accumulation, once the tile before is accumulated.
    __device__ __forceinline__ void publish(const Published& tile) {
        const bool rescale =
            __any_sync(0xffffffff, tile.factor[0] != 1.0f || tile.factor[1] != 1.0f);
        ptx::mbarrier_wait(shared + kBarrierPEmpty, published++ & 1 ^ 1);
#pragma unroll
        for (int32_t j = 0; j < kKeys / 8; j += 2)
            ptx::store_matrices(p_row ^ (j << 4), tile.p[j][0], tile.p[j][1], tile.p[j + 1][0],
                                tile.p[j + 1][1]);
        if (thread % 4 == 0) {
            row_scale[row()] = tile.factor[0];
            row_scale[row() + 8] = tile.factor[1];
        }
        if (thread % 32 == 0) rescale_flag[thread / 32] = rescale;
        ptx::fence_async_proxy();
        __syncwarp();
        ptx::mbarrier_arrive_warp(shared + kBarrierPFull, thread % 32);
    }

    __device__ __forceinline__ void unit_tiles(const WorkUnit& unit, const QueryRegisters& q,
                                               RowState (&rows)[2]) {
        const SeenKeys seen(p, unit, row());
        // Tensor cores serve whoever asks, and accumulation asks for more: started beside the next
        // scores it would hold them up. So a tile's P is held back until those are done, if their
        // keys are there.
        bool held = false;
        Published tile;
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            Scores s;
            if (!held) ptx::mbarrier_wait(full(turn), turn.parity());
            compute_scores(shared, shared + kKv + turn.stage() * kTileBytes, q, s, [&] {
                if (held) publish(tile);
            });
            if (p.logit_cap > 0.0f) cap_scores(p, s);
            if (key + kKeys > unit.seen_end) {
                if (unit.is_fast())
                    mask_tail(shared + kTailMask, unit, key, row(), s);
                else
                    seen.mask(p, unit, key, s);
            }
            tile = soften(s, rows);
            ++turn.count;
            held = __all_sync(0xffffffff, key + kKeys < unit.key_end &&
                                              ptx::mbarrier_done(full(turn), turn.parity()));
            if (!held) publish(tile);
        }
    }

    __device__ __forceinline__ void finish(const WorkUnit& unit, uint32_t unit_parity,
                                           const RowState (&rows)[2]) const {
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            const float sum = quad_sum(rows[half].sum);
            if (thread % 4 != 0) continue;
            row_inverse[unit_parity * 64 + row() + 8 * half] = sum == 0.0f ? 0.0f : 1.0f / sum;
            if (unit.columns == UnitColumns::high) continue;  // the other half stores it
            store_lse(p, unit, row() + 8 * half, row_lse(rows[half].maximum, sum));
        }
        __syncwarp();
        ptx::mbarrier_arrive_warp(shared + kBarrierFinal + 8 * unit_parity, thread % 32);
    }

    __device__ __forceinline__ void run() {
        WorkUnit unit = p.workspace.units[blockIdx.x];
        const int32_t units = p.workspace.header->units;
        int32_t index = first_unit(p.workspace);
        QuerySources sources;
        if (index < units) sources = QuerySources(p, unit, thread);
        sources.hold();
        ptx::grid_dependency_wait();
        ptx::grid_dependency_launch();
        if (index >= units) return;
        QueryRegisters q;
        load_q(sources, shared, thread, q, [] { ptx::named_barrier_arrive(kQueryBarrier, 256); });
        for (uint32_t unit_parity = 0;; unit_parity ^= 1) {
            RowState rows[2];
            unit_tiles(unit, q, rows);
            finish(unit, unit_parity, rows);
            index = next_unit(unit, index);
            if (index >= units) return;
            const int32_t row = unit.first_node * p.heads + unit.row_begin;
            const int32_t row_count = unit.rows;
            unit = p.workspace.units[index];
            if (unit.first_node * p.heads + unit.row_begin == row && unit.rows == row_count)
                continue;
            // All four warps are through with the Q of the unit before.
            ptx::named_barrier_sync(kScoreBarrier, 128);
            load_q(QuerySources(p, unit, thread), shared, thread, q, [] {});
        }
    }
};

// ---- accumulate -------------------------------------------------------------------------------

/// What an accumulating warpgroup has of the latent: 256 values, or 128 where two blocks share the
/// unit. `chunk`: of 64 values, the first.
struct LatentPart {
    bool wide;
    int32_t chunk;

    __device__ LatentPart(const WorkUnit& unit, int32_t half)
        : wide(unit.columns == UnitColumns::all),
          chunk((wide ? 4 : 2) * half + (unit.columns == UnitColumns::high ? 4 : 0)) {}
};

/// Normalises a warp's 16 rows of O and stores them, by way of its own part of shared memory, 32
/// columns at a time. No stage of the ring is taken for it: the next unit's tiles come meanwhile.
/// `thread`: of the warpgroup.
__device__ __forceinline__ void store_out(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                          uint32_t shared, int32_t thread, int32_t half,
                                          const LatentPart& part, const float (&inverse)[2],
                                          const float (&o)[2][64]) {
    const int32_t lane = thread % 32;
    const uint32_t memory = shared + kOut + (half * 4 + thread / 32) * kOutBytes;
    // 64 bytes a row; the 16-byte units of rows 2 i and 2 i + 1 lie in order i.
    const auto place = [&](int32_t row, int32_t unit16) {
        return memory + row * 64 + ((unit16 ^ (row >> 1 & 3)) << 4);
    };
    const uint32_t to[2] = {place(lane % 16, lane / 16), place(lane % 16, 2 + lane / 16)};
    const uint32_t from[2] = {place(lane / 4, lane % 4), place(8 + lane / 4, lane % 4)};
    const int64_t first_row = unit.partial >= 0
                                  ? int64_t{unit.partial} * kTileRows
                                  : int64_t{unit.first_node} * p.heads + unit.row_begin;
    const int32_t row = thread / 32 * 16 + lane / 4;  // and row + 8
    auto* const out = static_cast<std::byte*>(unit.partial >= 0 ? p.workspace.partial_out : p.out) +
                      2 * ((first_row + row) * kMlaLatent + part.chunk * 64) + lane % 4 * 16;
#pragma unroll
    for (int32_t piece = 0; piece < 8; ++piece) {
        const int32_t rows = piece < 4 || part.wide ? unit.rows : 0;
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {  // 16 columns
            const float* const d = &o[piece / 4][piece % 4 * 16 + i * 8];
            ptx::store_matrices(to[i], ptx::pack_bf16(d[0] * inverse[0], d[1] * inverse[0]),
                                ptx::pack_bf16(d[2] * inverse[1], d[3] * inverse[1]),
                                ptx::pack_bf16(d[4] * inverse[0], d[5] * inverse[0]),
                                ptx::pack_bf16(d[6] * inverse[1], d[7] * inverse[1]));
        }
        __syncwarp();
        const uint4 values[2] = {ptx::load_shared_128(from[0]), ptx::load_shared_128(from[1])};
        if (row < rows) *reinterpret_cast<uint4*>(out + piece * 64) = values[0];
        if (row + 8 < rows)
            *reinterpret_cast<uint4*>(out + 8 * 2 * kMlaLatent + piece * 64) = values[1];
        __syncwarp();  // before the next piece is written
    }
}

/// O += P V of a tile, its first kWidth times 128 columns; `more` false: O = P V.
template <int32_t kWidth>
__device__ __forceinline__ void add_products(uint64_t p_tile, uint64_t v_tile, bool more,
                                             float (&o)[2][64]) {
#pragma unroll
    for (int32_t i = 0; i < kWidth; ++i) wgmma::touch(o[i]);
    wgmma::fence();
#pragma unroll
    for (int32_t step = 0; step < kKeys / 16; ++step) {
#pragma unroll
        for (int32_t i = 0; i < kWidth; ++i)
            wgmma::ss_n128_bt(o[i], p_tile + step * 2,
                              v_tile + i * 2 * (kChunkBytes >> 4) + step * 128, more || step > 0);
    }
    wgmma::commit();
    wgmma::wait<0>();
#pragma unroll
    for (int32_t i = 0; i < kWidth; ++i) wgmma::touch(o[i]);
}

__device__ __forceinline__ void accumulate(const AttnVerifyMlaParams& p, const std::byte* memory,
                                           uint32_t shared, int32_t thread, int32_t half) {
    const int32_t warp = thread / 32;
    const int32_t lane = thread % 32;
    const int32_t row = warp * 16 + lane / 4;
    const float* const row_scale = reinterpret_cast<const float*>(memory + kRowScale);
    const float* const row_inverse = reinterpret_cast<const float*>(memory + kRowInverse);
    const int32_t* const rescale_flag = reinterpret_cast<const int32_t*>(memory + kRescaleFlag);
    const uint64_t p_tile = wgmma::k_major(shared + kP);

    WorkUnit unit = p.workspace.units[blockIdx.x];
    const int32_t units = p.workspace.header->units;
    ptx::grid_dependency_wait();  // the partials may still be read by the step before
    Turn<kStages> turn{0};
    uint32_t unit_count = 0;
    for (int32_t index = first_unit(p.workspace); index < units;
         index = next_unit(unit, index), ++unit_count) {
        if (index != blockIdx.x) unit = p.workspace.units[index];
        const uint32_t unit_parity = unit_count & 1;
        const LatentPart part(unit, half);
        float o[2][64];  // 128 columns each: one product cannot have 256 in a block of 512 threads
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys, ++turn.count) {
            const bool first = key == unit.key_begin;
            ptx::mbarrier_wait(shared + kBarrierFull + 8 * turn.stage(), turn.parity());
            ptx::mbarrier_wait(shared + kBarrierPFull, turn.count & 1);
            if (!first && *const_cast<const volatile int32_t*>(rescale_flag + warp)) {
                const float factor[2] = {*const_cast<const volatile float*>(row_scale + row),
                                         *const_cast<const volatile float*>(row_scale + row + 8)};
#pragma unroll
                for (int32_t i = 0; i < 128; ++i) o[i / 64][i % 64] *= factor[i >> 1 & 1];
            }
            const uint64_t v_tile = wgmma::mn_major(
                shared + kKv + turn.stage() * kTileBytes + part.chunk * kChunkBytes, kChunkBytes);
            if (part.wide)
                add_products<2>(p_tile, v_tile, !first, o);
            else
                add_products<1>(p_tile, v_tile, !first, o);
            ptx::mbarrier_arrive_warp(shared + kBarrierPEmpty, lane);
            ptx::mbarrier_arrive_warp(shared + kBarrierEmpty + 8 * turn.stage(), lane);
        }
        ptx::mbarrier_wait(shared + kBarrierFinal + 8 * unit_parity, unit_count >> 1 & 1);
        const float inverse[2] = {
            *const_cast<const volatile float*>(row_inverse + unit_parity * 64 + row),
            *const_cast<const volatile float*>(row_inverse + unit_parity * 64 + row + 8)};
        if (warp * 16 < unit.rows) store_out(p, unit, shared, thread, half, part, inverse, o);
        __syncwarp();
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: at most one block a multiprocessor, persistent. Block: kThreads.
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_mla_wgmma_kernel(const __grid_constant__ AttnVerifyMlaParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::byte raw_memory[];
    const uint32_t raw = ptx::smem_address(raw_memory);
    const uint32_t shared = (raw + 1023) & ~uint32_t{1023};
    std::byte* const memory = raw_memory + (shared - raw);
    if (threadIdx.x == 0) {
        for (int32_t stage = 0; stage < kStages; ++stage) {
            ptx::mbarrier_init(shared + kBarrierFull + 8 * stage, 128);
            ptx::mbarrier_init(shared + kBarrierEmpty + 8 * stage, 8 * ptx::kWarpArrivals);
        }
        ptx::mbarrier_init(shared + kBarrierPFull, 4 * ptx::kWarpArrivals);
        ptx::mbarrier_init(shared + kBarrierPEmpty, 8 * ptx::kWarpArrivals);
        for (int32_t parity = 0; parity < 2; ++parity)
            ptx::mbarrier_init(shared + kBarrierFinal + 8 * parity, 4 * ptx::kWarpArrivals);
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    // One if for the roles: the compiler gives each branch the registers it asks for.
    const int32_t role = threadIdx.x / 128;
    if (role == 0) {
        ptx::setmaxnreg_decrease<40>();
        load(p, shared, thread_of_role());
    } else if (role == 1) {
        ptx::setmaxnreg_increase<152>();
        ScoreRole(p, memory, shared, thread_of_role()).run();
    } else {
        ptx::setmaxnreg_increase<160>();
        accumulate(p, memory, shared, thread_of_role(), role - 2);
    }
#endif
}

}  // namespace kd::mla_wgmma
