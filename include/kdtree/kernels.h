/* kdtree/kernels.h: the tree-verify kernels for other hosts (SGLang, a server of your own, tests).
 *
 * C ABI of libkdtree_kernels.so: plain structs, plain device pointers, a CUDA stream. Nothing here
 * allocates device memory, synchronises or reads device memory from the host, so every call but the
 * size queries may be captured in a CUDA graph; what changes between replays (context lengths, tree
 * sizes, slots, masks) lives in device memory.
 *
 * The work of one verify step:
 *   1. once, ahead:    kdt_attn_workspace_bytes() for the largest step, allocate that much.
 *   2. once a step:    kdt_attn_plan(): cuts the step's attention into work units, on the device.
 *   3. for each layer: kdt_rope_append(), then kdt_attn_verify_mla() or kdt_attn_verify_gqa().
 *   4. after acceptance: kdt_kv_move() of the accepted rows, all layers at once.
 *
 * Order: the plan copies what it needs of the arrays of kdt_attn_batch, so all of them, tail_slots
 * and ancestors too, have to be final before it and stay as they are until the last layer. Verify
 * is launched with programmatic stream serialization and reads the plan, the batch and the cache
 * rows of the context before its predecessor in the stream has finished. So nothing that writes
 * those may be the launch directly before it: put the plan in between (kdt_kv_move, then
 * kdt_attn_plan, then the layers). Rows of tree nodes, queries and outputs may be written by the
 * launch directly before.
 *
 * Errors: every function returns a kdt_status; kdt_last_error() says what was wrong, with the
 * offending value, for the calling thread. After KDT_INVALID and KDT_UNSUPPORTED nothing was
 * launched; after KDT_CUDA_ERROR a part of the call may have been, and its outputs are undefined.
 * Contents of device arrays cannot be checked at launch; what they must satisfy stands beside them.
 * A step whose context or node counts exceed what its batch promises gets an empty plan: its layers
 * write nothing.
 *
 * Set struct_bytes = sizeof(the struct) and zero the rest first; a library built from another
 * version of a struct refuses it.
 */
#ifndef KDTREE_KERNELS_H
#define KDTREE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KDT_API __attribute__((visibility("default")))
#else
#define KDT_API
#endif

#define KDT_KERNELS_ABI 1

typedef enum kdt_status {
    KDT_OK = 0,
    KDT_INVALID = 1,     /* an argument is wrong: see kdt_last_error() */
    KDT_UNSUPPORTED = 2, /* a valid request that no kernel of this build or device serves */
    KDT_CUDA_ERROR = 3,  /* the CUDA runtime said no: see kdt_last_error() */
    KDT_SHORT = 4 /* page pool: not enough free pages (or host memory) now; nothing changed */
} kdt_status;

/* cudaStream_t without cuda_runtime.h. */
typedef struct CUstream_st* kdt_stream;

/* The message of this thread's last failed call; "" if none failed. Valid until the next call. */
KDT_API const char* kdt_last_error(void);
/* KDT_KERNELS_ABI of the library that was loaded. */
KDT_API int32_t kdt_kernels_abi(void);
/* "0.1.0 (commit)". */
KDT_API const char* kdt_kernels_version(void);

/* ---- shapes --------------------------------------------------------------------------------- */

typedef enum kdt_attn_kind {
    KDT_ATTN_MLA = 0, /* absorbed multi-head latent attention: one latent row of 512 + 64 (rope)
                         values a token is K, its first 512 values are V */
    KDT_ATTN_GQA = 1
} kdt_attn_kind;

/* Products with FP8 caches run in f16: queries and rope keys are rounded to it (up to 65,504).
 * KDT_PATH_WGMMA takes e4m3 products instead for the scores of GQA with 96 or 128 dimensions, and
 * in fast mode for those of MLA (KDT_KV_FP8_MLA656: of its latent) while max_nodes * heads is at
 * most 32 and the keys of a part at most 2,048: min(requests, max_nodes) * max_context over the
 * device's multiprocessors, or max_context / splits. A row of queries is then the sum of two e4m3
 * rows: exact for values from 2^-9 of the row's largest on, the others to 2^-17 of it, and the sums
 * to about 2^-13. Those MLA steps with KDT_KV_FP8 weigh V so too: weights are rounded by up to
 * 2^-8, and one below 2^-19 of the row's largest may count for nothing. So in fast mode MLA's last
 * bits depend on what a batch promises (requests, max_nodes, max_context). */
typedef enum kdt_kv_format {
    KDT_KV_BF16 = 0,
    KDT_KV_FP8 = 1,       /* e4m3, one float scale for K and one for V (MLA: one for the row) */
    KDT_KV_FP8_MLA656 = 2 /* MLA only, FlashMLA's layout: 512 e4m3, 4 float scales (of 128 values
                             each), 64 bf16 rope values: 656 bytes a token. Scales of V, and
                             where products run in f16 of K, are applied in f16: full precision
                             from 6e-5 to 146 */
} kdt_kv_format;

typedef enum kdt_attn_mode {
    KDT_ATTN_FAST = 0,
    KDT_ATTN_DETERMINISTIC = 1 /* a node's output is a function of its path alone: not of the tree,
                                  the batch, the page layout or the device's multiprocessor count */
} kdt_attn_mode;

typedef enum kdt_attn_path {
    KDT_PATH_AUTO = 0,
    KDT_PATH_WGMMA = 1,   /* sm_90a */
    KDT_PATH_MMA_SYNC = 2 /* sm_120a and sm_90a */
} kdt_attn_path;

/* What is fixed when a model is loaded. */
typedef struct kdt_attn_shape {
    uint32_t struct_bytes;
    int32_t kind;           /* kdt_attn_kind */
    int32_t heads;          /* query heads on this rank, 1..128 */
    int32_t kv_heads;       /* MLA: 1; GQA: divides heads, heads / kv_heads <= 16 */
    int32_t head_dim;       /* MLA: 576; GQA: 64, 96, 128 or 256 */
    int32_t kv_format;      /* kdt_kv_format */
    int32_t mode;           /* kdt_attn_mode */
    int32_t path;           /* kdt_attn_path */
    int32_t max_depth;      /* deterministic mode: no node is deeper than this, 0..64; the outputs
                               of two calls agree only under the same max_depth. Else ignored */
    int32_t sliding_window; /* GQA: a node at position p sees keys at positions > p - window;
                               0: all */
    int32_t splits;         /* 0: planned; n >= 1: cut every request's keys into n parts (clamped to
                               its key tiles and the workspace). For tuning */
} kdt_attn_shape;

/* The requests of one step. All pointers are device memory. Request r has the tree nodes
 * [node_start[r], node_start[r + 1]) and context[r] committed tokens, whose K/V rows are found
 * through the page table; node i's own K/V row is in slot tail_slots[i]. */
typedef struct kdt_attn_batch {
    uint32_t struct_bytes;
    int32_t requests;          /* 1..64 */
    int32_t max_nodes;         /* node_start[requests] at most; fixes the grid and the workspace */
    int32_t max_context;       /* context[r] at most, 0..262144 */
    int32_t page_size;         /* tokens a page: 1, 16, 32 or 64 */
    const int32_t* context;    /* [requests] */
    const int32_t* node_start; /* [requests + 1], ascending from 0; at most 128 nodes a request */
    const int32_t* tail_slots; /* [nodes] slot of each node's K/V row, not negative; its
                                  values finite: those of every node of a request reach its
                                  products, if only times 0 */
    const uint64_t* ancestors; /* [nodes, 2] bit a: node a of the same request is this node (always
                                  set) or an ancestor of it */
    const int32_t* depth;      /* [nodes] tree depth, the root 0. Needed in deterministic mode and
                                  with a sliding window; else may be NULL */
    const int32_t*
        pages; /* page ids (id * page_size below 2^31); page j of request r is pages[start(r) + j],
                  slot of position p: page * page_size + p % page_size */
    const int64_t* pages_start; /* [requests] start(r); NULL: start(r) = r * pages_stride */
    int64_t pages_stride;
} kdt_attn_batch;

/* ---- attention ------------------------------------------------------------------------------ */

/* Bytes of device memory that plan and verify need between them for steps of up to `requests`
 * requests, `max_nodes` nodes in all and `max_context` context tokens a request on the current
 * device. Reused from layer to layer and from step to step; 256-byte aligned; no initial contents.
 */
KDT_API kdt_status kdt_attn_workspace_bytes(const kdt_attn_shape* shape, int32_t requests,
                                            int32_t max_nodes, int32_t max_context, size_t* bytes);

/* Plans one step into the workspace. Launch once a step, before the layers; the layers of the step
 * pass the same shape, batch and workspace. */
KDT_API kdt_status kdt_attn_plan(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                                 void* workspace, size_t workspace_bytes, kdt_stream stream);

typedef struct kdt_attn_mla_tensors {
    uint32_t struct_bytes;
    float scale;          /* of the scores, above 0 */
    float logit_cap;      /* 0: none; c: score = c * tanh(score * scale / c) */
    float kv_scale;       /* KDT_KV_FP8: value = e4m3 * kv_scale; else ignored */
    const void* q_latent; /* bf16 [nodes, heads, 512], absorbed query */
    const void* q_rope;   /* bf16 [nodes, heads, 64] */
    int64_t q_latent_node_stride, q_latent_head_stride; /* in values; multiples of 8 */
    int64_t q_rope_node_stride, q_rope_head_stride;
    const void* kv;         /* [slots, 576] bf16 or e4m3, or [slots, 656] bytes */
    int64_t kv_slot_stride; /* in values (KDT_KV_FP8_MLA656: bytes); a multiple of 16 bytes */
    void* out;              /* bf16 [nodes, heads, 512] */
    float* lse;             /* [nodes, heads] natural log of the sum of exp(score); NULL: not
                               wanted. A node that sees no key: out 0, lse -inf */
} kdt_attn_mla_tensors;

/* out = softmax(scale * q . k) v over the context and each node's ancestors. Two launches. */
KDT_API kdt_status kdt_attn_verify_mla(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                                       const kdt_attn_mla_tensors* tensors, void* workspace,
                                       size_t workspace_bytes, kdt_stream stream);

typedef struct kdt_attn_gqa_tensors {
    uint32_t struct_bytes;
    float scale; /* of the scores, above 0 */
    float logit_cap;
    float k_scale, v_scale;               /* KDT_KV_FP8; else ignored */
    const void* q;                        /* bf16 [nodes, heads, head_dim] */
    int64_t q_node_stride, q_head_stride; /* in values; multiples of 8 */
    const void* k;                        /* [slots, kv_heads, head_dim] bf16 or e4m3 */
    const void* v;
    int64_t kv_slot_stride, kv_head_stride; /* in values, of K and V alike; multiples of 16 bytes */
    void* out;                              /* bf16 [nodes, heads, head_dim] */
    float* lse;                             /* [nodes, heads] or NULL */
} kdt_attn_gqa_tensors;

KDT_API kdt_status kdt_attn_verify_gqa(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                                       const kdt_attn_gqa_tensors* tensors, void* workspace,
                                       size_t workspace_bytes, kdt_stream stream);

/* ---- new rows and accepted rows ------------------------------------------------------------- */

typedef enum kdt_rope_pairing {
    KDT_ROPE_ADJACENT = 0, /* (2i, 2i + 1) rotate together */
    KDT_ROPE_HALF = 1      /* (i, i + rotated / 2) */
} kdt_rope_pairing;

/* Rotates the rope part of Q in place and writes the new rows into the paged cache.
 * GQA: K and V rows [rows, kv_heads, head_dim]; MLA: latent rows [rows, 512] and rope keys
 * [rows, 64], of which only the rope key rotates. */
typedef struct kdt_rope_append_params {
    uint32_t struct_bytes;
    int32_t kind;      /* kdt_attn_kind */
    int32_t kv_format; /* kdt_kv_format */
    int32_t rows;      /* rows to write, 0..65536 */
    int32_t heads, kv_heads, head_dim;
    int32_t rotated; /* leading values of a head (MLA: of the 64 rope values) that rotate, even */
    int32_t pairing; /* kdt_rope_pairing */
    const int32_t* row_count; /* [1] device: rows that are real, at most `rows`; NULL: all */
    const int32_t* positions; /* [rows] context + depth */
    const int32_t* slots; /* [rows] distinct; negative: the row is padding, nothing is written */
    const float* inverse_frequency; /* [rotated / 2] */
    float attention_factor;         /* scales cos and sin (yarn); 1 without */
    void* q;                        /* bf16, rotated in place: GQA [rows, heads, head_dim], MLA the
                                       q_rope part [rows, heads, 64] */
    int64_t q_row_stride, q_head_stride;
    const void* k; /* bf16 [rows, kv_heads, head_dim]; MLA: latent [rows, 512] */
    const void* v; /* bf16 [rows, kv_heads, head_dim]; MLA: rope key [rows, 64] */
    int64_t k_row_stride, v_row_stride; /* in values, multiples of 8 */
    float k_scale, v_scale; /* KDT_KV_FP8: stored = value / scale (MLA: k_scale); else ignored */
    void* k_cache;          /* as in kdt_attn_*_tensors; MLA: the latent cache */
    void* v_cache;          /* GQA only */
    int64_t kv_slot_stride, kv_head_stride;
} kdt_rope_append_params;

KDT_API kdt_status kdt_rope_append(const kdt_rope_append_params* params, kdt_stream stream);

/* Copies rows between slots in several buffers (all layers, K and V, target and drafter) in one
 * launch. All reads of a buffer happen before its writes, so a slot may stand in both lists. */
typedef struct kdt_kv_move_params {
    uint32_t struct_bytes;
    int32_t buffers;           /* 1.. */
    int32_t max_moves;         /* 0..1024 */
    int32_t row_bytes;         /* bytes copied of each row, a multiple of 16 */
    int64_t slot_stride_bytes; /* a multiple of 16 */
    void* const* buffer;       /* device [buffers] base pointers, 16-byte aligned */
    const int32_t* move_count; /* device [1]; NULL: max_moves */
    const int32_t* from;       /* device [max_moves] */
    const int32_t* to;         /* device [max_moves] distinct */
} kdt_kv_move_params;

KDT_API kdt_status kdt_kv_move(const kdt_kv_move_params* params, kdt_stream stream);

/* ---- page pool ------------------------------------------------------------------------------ */

/* Who gets which page of a paged K/V cache: book-keeping in host memory, which needs no device and
 * no driver and never looks at the cache. A page is page_size consecutive slots; what a page holds
 * is the host's affair, so with page_size 1 pages are slots. Pages are numbered from 0.
 *
 * Threads: one at a time for each pool; different pools are independent.
 *
 * Every call either does all it was asked for or nothing. KDT_SHORT: evict something and ask again.
 * KDT_INVALID: the host's books are wrong (a page freed twice, out of range, never handed out,
 * twice in one call), and the pool's are as before. What cannot be seen: a page freed by a request
 * that it was not handed to, and a pool that was destroyed.
 *
 * Page ids are int32, as in the page tables above, and nothing else: a host that indexes with int64
 * widens them on the device, after a copy of half the bytes. Sums of counts are int64. */
typedef struct kdt_pool kdt_pool;

typedef enum kdt_pool_placement {
    KDT_POOL_UNSORTED = 0, /* in the order in which pages came back */
    KDT_POOL_SORTED = 1,   /* the lowest free pages */
    KDT_POOL_BEST_FIT = 2  /* as many as are free behind the request's last page; the others from
                              the shortest free run that holds them, where none does from the
                              longest runs */
} kdt_pool_placement;

typedef struct kdt_pool_options {
    uint32_t struct_bytes;
    int32_t pages;     /* 1..2^30; host memory is about 17 bytes a page, 21 unsorted */
    int32_t placement; /* kdt_pool_placement */
    int32_t reserved;  /* leading pages that are never handed out, 0..pages: 1 for a host such as
                          SGLang, whose padding writes to slot 0 */
} kdt_pool_options;

/* *pool is NULL after a failure; KDT_SHORT: there is not enough host memory. */
KDT_API kdt_status kdt_pool_create(const kdt_pool_options* options, kdt_pool** pool);
/* NULL: nothing happens. */
KDT_API void kdt_pool_destroy(kdt_pool* pool);

/* `count` pages for a new request, written to pages [count]. */
KDT_API kdt_status kdt_pool_allocate(kdt_pool* pool, int32_t count, int32_t* pages);

/* `count` pages more for the request whose last page is `last`: a page that was handed out, or -1:
 * there is none yet. Written to pages [count]. */
KDT_API kdt_status kdt_pool_extend(kdt_pool* pool, int32_t last, int32_t count, int32_t* pages);

/* The same for several requests at once, all of them or none: counts[r] pages behind lasts[r]
 * (lasts NULL: all requests are new). Request r gets pages[offsets[r]] to
 * pages[offsets[r + 1] - 1], whatever the order in which they are served; so the sum of counts must
 * fit into `capacity`. Two requests may have the same last page, a shared prefix.
 *
 * With best fit, first every request takes what is free directly behind its last page, in the order
 * given: nobody else gains by those pages, and a neighbour served earlier could take them. Then the
 * rest is placed, the largest first: a small one fits into what a large one leaves over, not the
 * other way round. Otherwise they are served in the order given. */
KDT_API kdt_status kdt_pool_extend_batch(kdt_pool* pool, int32_t requests,
                                         const int32_t* counts, /* [requests] */
                                         const int32_t* lasts,  /* [requests] or NULL */
                                         int32_t* pages,        /* [capacity] */
                                         int64_t capacity, int64_t* offsets); /* [requests + 1] */

/* Gives pages [count] back, in any order and of any number of requests. */
KDT_API kdt_status kdt_pool_free(kdt_pool* pool, const int32_t* pages, int64_t count);

typedef struct kdt_pool_stats {
    uint32_t struct_bytes;
    int32_t pages; /* as created; of them pages - reserved - free_pages are handed out */
    int32_t reserved;
    int32_t free_pages;
    int32_t free_runs;        /* stretches of neighbours */
    int32_t longest_free_run; /* pages; costs a walk over the free runs, not so with best fit */
} kdt_pool_stats;

/* stats->struct_bytes is set by the caller. */
KDT_API kdt_status kdt_pool_read_stats(const kdt_pool* pool, kdt_pool_stats* stats);

#ifdef __cplusplus
}
#endif
#endif
