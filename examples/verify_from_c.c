/* Verifies a small draft tree on a random latent cache, from C.
 *
 *     build/cuda/examples/verify_from_c
 *
 * Needs a GPU. Compares the kernel with a plain computation in double and prints the relative L2
 * difference; exit code 1 if it is above 3e-3 or a call fails.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kdtree/kernels.h"

enum { HEADS = 8, CONTEXT = 1000, NODES = 6, SLOTS = 1200, LATENT = 512, ROPE = 64, DIM = 576 };

/* Node 0 is the last emitted token. Two drafts follow it, the first of them with two children. */
static const int32_t parent[NODES] = {-1, 0, 0, 1, 1, 3};

static void check_cuda(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static void check(kdt_status status, const char* what) {
    if (status == KDT_OK) return;
    fprintf(stderr, "error: %s: status %d: %s\n", what, (int)status, kdt_last_error());
    exit(1);
}

/* Uniform in [-1, 1), the same on every machine. */
static float random_value(uint32_t* state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static double from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void* on_device(const void* host, size_t bytes) {
    void* device;
    check_cuda(cudaMalloc(&device, bytes), "cudaMalloc");
    if (host) check_cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return device;
}

static uint16_t kv[SLOTS][DIM]; /* a token's latent row and rope key: K; its first 512 values: V */
static uint16_t q[NODES][HEADS][DIM];
static uint16_t out[NODES][HEADS][LATENT];
static int32_t slots[CONTEXT + NODES]; /* of the positions, then of the nodes */
static uint64_t ancestors[NODES][2];

/* softmax(scale * q . k) v over the context and the node's ancestors. */
static void attend(int32_t node, int32_t head, double scale, double result[LATENT]) {
    double p[CONTEXT + NODES];
    double largest = -INFINITY;
    double sum = 0;
    for (int32_t key = 0; key < CONTEXT + NODES; ++key) {
        p[key] = -INFINITY;
        if (key >= CONTEXT && !(ancestors[node][0] >> (key - CONTEXT) & 1)) continue;
        double score = 0;
        for (int32_t i = 0; i < DIM; ++i) {
            score += from_bf16(q[node][head][i]) * from_bf16(kv[slots[key]][i]);
        }
        p[key] = score * scale;
        if (p[key] > largest) largest = p[key];
    }
    memset(result, 0, LATENT * sizeof *result);
    for (int32_t key = 0; key < CONTEXT + NODES; ++key) {
        const double weight = exp(p[key] - largest);
        sum += weight;
        for (int32_t i = 0; i < LATENT; ++i) result[i] += weight * from_bf16(kv[slots[key]][i]);
    }
    for (int32_t i = 0; i < LATENT; ++i) result[i] /= sum;
}

int main(void) {
    uint32_t state = 1;
    for (int32_t s = 0; s < SLOTS; ++s) {
        for (int32_t i = 0; i < DIM; ++i) kv[s][i] = to_bf16(random_value(&state));
    }
    for (int32_t n = 0; n < NODES; ++n) {
        for (int32_t h = 0; h < HEADS; ++h) {
            for (int32_t i = 0; i < DIM; ++i) q[n][h][i] = to_bf16(2 * random_value(&state));
        }
        ancestors[n][0] = (uint64_t)1 << n | (parent[n] < 0 ? 0 : ancestors[parent[n]][0]);
    }
    /* Any slot for any token: 7 and SLOTS have no common factor. */
    for (int32_t k = 0; k < CONTEXT + NODES; ++k) slots[k] = k * 7 % SLOTS;

    const int32_t context[1] = {CONTEXT};
    const int32_t node_start[2] = {0, NODES};
    void* device_kv = on_device(kv, sizeof kv);
    void* device_q = on_device(q, sizeof q);
    void* device_out = on_device(NULL, sizeof out);
    int32_t* device_slots = on_device(slots, sizeof slots);

    kdt_attn_shape shape = {0};
    shape.struct_bytes = sizeof shape;
    shape.kind = KDT_ATTN_MLA;
    shape.heads = HEADS;
    shape.kv_heads = 1;
    shape.head_dim = DIM;

    kdt_attn_batch batch = {0};
    batch.struct_bytes = sizeof batch;
    batch.requests = 1;
    batch.max_nodes = NODES;
    batch.max_context = CONTEXT;
    batch.page_size = 1; /* a page id is a slot */
    batch.context = on_device(context, sizeof context);
    batch.node_start = on_device(node_start, sizeof node_start);
    batch.tail_slots = device_slots + CONTEXT;
    batch.ancestors = on_device(ancestors, sizeof ancestors);
    batch.pages = device_slots;

    kdt_attn_mla_tensors tensors = {0};
    tensors.struct_bytes = sizeof tensors;
    tensors.scale = 1.0f / sqrtf(192); /* a head of the model has 128 + 64 query values */
    tensors.q_latent = device_q;
    tensors.q_rope = (const uint16_t*)device_q + LATENT;
    tensors.q_latent_node_stride = tensors.q_rope_node_stride = HEADS * DIM;
    tensors.q_latent_head_stride = tensors.q_rope_head_stride = DIM;
    tensors.kv = device_kv;
    tensors.kv_slot_stride = DIM;
    tensors.out = device_out;

    size_t workspace_bytes;
    check(kdt_attn_workspace_bytes(&shape, 1, NODES, CONTEXT, &workspace_bytes),
          "kdt_attn_workspace_bytes");
    void* workspace = on_device(NULL, workspace_bytes);
    check(kdt_attn_plan(&shape, &batch, workspace, workspace_bytes, NULL), "kdt_attn_plan");
    check(kdt_attn_verify_mla(&shape, &batch, &tensors, workspace, workspace_bytes, NULL),
          "kdt_attn_verify_mla");
    check_cuda(cudaMemcpy(out, device_out, sizeof out, cudaMemcpyDeviceToHost), "the kernels");

    double difference = 0;
    double reference = 0;
    for (int32_t n = 0; n < NODES; ++n) {
        for (int32_t h = 0; h < HEADS; ++h) {
            double expected[LATENT];
            attend(n, h, tensors.scale, expected);
            for (int32_t i = 0; i < LATENT; ++i) {
                const double off = from_bf16(out[n][h][i]) - expected[i];
                difference += off * off;
                reference += expected[i] * expected[i];
            }
        }
    }
    const double error = sqrt(difference / reference);
    printf("%s: %d nodes, %d heads, context %d: relative L2 difference %.2e\n",
           kdt_kernels_version(), NODES, HEADS, CONTEXT, error);
    return error <= 3e-3 ? 0 : 1; /* NaN fails */
}
