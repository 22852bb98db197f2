// The PTX instructions that the kernels use, one thin function each. Shared-memory addresses are
// 32-bit (smem_address). What needs sm_90a says so in its name: wgmma_*, setmaxnreg.
#pragma once

#include <cstdint>

namespace kd::ptx {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- programmatic dependent launch ----------------------------------------------------------

/// Waits until everything launched before this kernel has finished and is visible.
__device__ __forceinline__ void grid_dependency_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets the next kernel's blocks start. Call it after grid_dependency_wait: a kernel may then rely
/// on everything but its direct predecessor having finished before its own wait.
__device__ __forceinline__ void grid_dependency_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- mbarrier ---------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
/// Makes initialised barriers visible to the asynchronous units and the cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/// How many arrivals a warp makes: lane 0's, for all. racecheck takes an arrival to order what the
/// arriving lane itself did before, whatever __syncwarp() says, so in its build (CMake option
/// KDTREE_RACECHECK) every lane arrives.
#ifdef KDT_ARRIVE_ALL_LANES
inline constexpr bool kAllLanesArrive = true;
#else
inline constexpr bool kAllLanesArrive = false;
#endif
inline constexpr uint32_t kWarpArrivals = kAllLanesArrive ? 32 : 1;

/// This warp arrives `times` times, for what its lanes did before the last __syncwarp().
__device__ __forceinline__ void mbarrier_arrive_warp(uint32_t barrier, int32_t lane,
                                                     uint32_t times = 1) {
    if (kAllLanesArrive || lane == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times)
                     : "memory");
}
/// The same at barriers number `first` and, if there are two, `second` of those from `barriers` on.
template <int32_t kCount>
__device__ __forceinline__ void mbarrier_arrive_warp_at(uint32_t barriers, uint32_t first,
                                                        uint32_t second, int32_t lane) {
    static_assert(kCount == 1 || kCount == 2);
    if (kAllLanesArrive) {
        mbarrier_arrive(barriers + 8 * first);
        if (kCount == 2) mbarrier_arrive(barriers + 8 * second);
    } else if (lane < kCount) {
        mbarrier_arrive(barriers + 8 * (lane == 0 ? first : second));
    }
}
/// This warp arrives; the phase also waits for `bytes` of bulk copies, which any lane may then ask
/// for.
__device__ __forceinline__ void mbarrier_arrive_warp_expect_bytes(uint32_t barrier, int32_t lane,
                                                                  uint32_t bytes) {
    if (lane == 0)
        mbarrier_arrive_expect_bytes(barrier, bytes);
    else if (kAllLanesArrive)
        mbarrier_arrive(barrier);
    __syncwarp();
}

/// Arrives once this thread's earlier cp.async copies have landed; counts as one of the barrier's
/// expected arrivals.
__device__ __forceinline__ void mbarrier_arrive_on_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Waits for the phase of parity `parity` to complete (a fresh barrier: parity 1 returns at once).
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/// The same, also for what other blocks of the cluster did for it.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/// The same without what they did: for a place that they have read, of which they tell by
/// mbarrier_arrive_warp_of_peer(), which orders nothing either. An acquire of the cluster's would
/// drop what the first-level cache holds.
__device__ __forceinline__ void mbarrier_wait_relaxed_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/// Whether the phase of parity `parity` has completed; _cluster as above.
__device__ __forceinline__ bool mbarrier_done(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

__device__ __forceinline__ bool mbarrier_done_cluster(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// ---- shared memory by 32-bit address -----------------------------------------------------------

__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float4 value) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
                 "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint2 value) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y)
                 : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ uint4 load_shared_128(uint32_t address) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ float4 load_shared_float4(uint32_t address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ float2 load_shared_float2(uint32_t address) {
    float2 value;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value.x), "=f"(value.y)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ uint2 load_shared_64(uint32_t address) {
    uint2 value;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ uint32_t load_shared_32(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ float load_shared_float(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

// ---- copies -----------------------------------------------------------------------------------

/// 16 bytes from global to shared memory, past L1; zeros where !valid (then nothing is read).
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from, bool valid) {
    const int32_t bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}
/// L2 policy for what is read once: it makes room before anything else does.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/// copy_async_16() under an L2 policy.
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from, bool valid,
                                              uint64_t policy) {
    const int32_t bytes = valid ? 16 : 0;
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
        "l"(from), "r"(bytes), "l"(policy)
        : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// `bytes` (a multiple of 16) from global to shared memory; counted by `barrier`.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
/// copy_bulk() under an L2 policy.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/// Four 8 x 8 matrices of 16-bit values to shared memory: lane l gives the address of row l % 8 of
/// matrix l / 8, and of matrix i the two values of row l / 4 at columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2,
                                               uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

/// The first two of them; lanes 0..15 give the addresses.
__device__ __forceinline__ void store_matrix_pair(uint32_t to, uint32_t m0, uint32_t m1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(m0),
                 "r"(m1)
                 : "memory");
}

/// Four, each transposed.
__device__ __forceinline__ void store_matrices_transposed(uint32_t to, uint32_t m0, uint32_t m1,
                                                          uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

/// The first two of them.
__device__ __forceinline__ void store_matrix_pair_transposed(uint32_t to, uint32_t m0,
                                                             uint32_t m1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
                 "r"(m0), "r"(m1)
                 : "memory");
}

/// Orders this thread's ordinary shared-memory accesses against the asynchronous units (wgmma,
/// bulk copies), both ways.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Barrier `id` (1..15) over `threads` threads of the block. It counts warps that arrive as one, so
/// here and below a warp whose lanes took different ways is made one first.
__device__ __forceinline__ void named_barrier_sync(int32_t id, int32_t threads) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives at it without waiting; counts as one of the `threads`.
__device__ __forceinline__ void named_barrier_arrive(int32_t id, int32_t threads) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// As named_barrier_sync(); true for all if `vote` is for any of the threads.
__device__ __forceinline__ bool named_barrier_any(int32_t id, int32_t threads, bool vote) {
    __syncwarp();
    int32_t any;
    asm volatile(
        "{\n"
        ".reg .pred own, all;\n"
        "setp.ne.s32 own, %1, 0;\n"
        "bar.red.or.pred all, %2, %3, own;\n"
        "selp.s32 %0, 1, 0, all;\n"
        "}\n"
        : "=r"(any)
        : "r"(static_cast<int32_t>(vote)), "r"(id), "r"(threads)
        : "memory");
    return any != 0;
}

// ---- clusters -----------------------------------------------------------------------------------
// Addresses of another block's shared memory come from map_shared().

/// Barrier of all threads of the cluster. Of memory it orders what mbarrier_init_fence() does, and
/// within each block what __syncthreads() does.
__device__ __forceinline__ void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.relaxed.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;\n" ::
            : "memory");
}

/// The place of this block's `address` in the shared memory of the cluster's block `rank`.
__device__ __forceinline__ uint32_t map_shared(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

/// Nothing below happens before `word` is there, nor the loads that it was computed from. `word`
/// may be anything; for one value in 2^32 it takes some clocks longer.
__device__ __forceinline__ void hold_until(uint32_t word) {
    asm volatile(
        "{\n"
        ".reg .pred unlikely;\n"
        "setp.eq.u32 unlikely, %0, 0x7fc0dead;\n"
        "@unlikely nanosleep.u32 0;\n"
        "}\n" ::"r"(word)
        : "memory");
}

/// 16 bytes to another block; counted by its `barrier` when they are there.
__device__ __forceinline__ void store_async(uint32_t to, float4 value, uint32_t barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
        "%4}, [%5];" ::"r"(to),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
        : "memory");
}

/// This warp arrives at another block's barrier. Orders nothing: a release that the cluster sees
/// waits for all that the thread has under way, some 1,000 clocks. What it says has been read from
/// shared memory goes through hold_until() first, or the compiler moves its use behind the arrival,
/// which overtakes the loads.
__device__ __forceinline__ void mbarrier_arrive_warp_of_peer(uint32_t barrier, int32_t lane) {
    if (kAllLanesArrive || lane == 0)
        asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                     : "memory");
}

/// `bytes` (a multiple of 16) from this block's to another one's shared memory; counted by its
/// `barrier`.
__device__ __forceinline__ void copy_bulk_to_peer(uint32_t to, uint32_t from, uint32_t bytes,
                                                  uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// ---- registers --------------------------------------------------------------------------------

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- arithmetic -------------------------------------------------------------------------------

/// Two bf16 in a word, `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
/// 2^x; -inf gives 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace kd::ptx
