"""What the tests of the Python package share: the package on sys.path, a stub of the library,
tensors and a torch.cuda that need no torch."""

import contextlib
import subprocess
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "kdtree" / "kernels.h"
sys.path.insert(0, str(ROOT / "python"))
sys.dont_write_bytecode = True

# Every call succeeds, unless its stream is 7; the last structs can be read back.
STUB = """
#include <string.h>
#include "kdtree/kernels.h"
#ifndef STUB_ABI
#define STUB_ABI KDT_KERNELS_ABI
#endif
static const char* message = "";
struct { int32_t function; kdt_attn_shape shape; kdt_attn_batch batch; kdt_attn_mla_tensors mla;
         kdt_attn_gqa_tensors gqa; kdt_rope_append_params rope; kdt_kv_move_params move;
         void* workspace; uint64_t workspace_bytes; void* stream; } seen;
__attribute__((visibility("default"))) void* stub_seen(void) { return &seen; }
static kdt_status done(int32_t function, kdt_stream stream) {
    seen.function = function;
    seen.stream = stream;
    if (stream != (kdt_stream)7) return KDT_OK;
    message = "heads 129 is not in 1..128";
    return KDT_INVALID;
}
const char* kdt_last_error(void) { return message; }
int32_t kdt_kernels_abi(void) { return STUB_ABI; }
const char* kdt_kernels_version(void) { return "0.1.0 (stub)"; }
kdt_status kdt_attn_workspace_bytes(const kdt_attn_shape* shape, int32_t requests,
                                    int32_t max_nodes, int32_t max_context, size_t* bytes) {
    seen.shape = *shape;
    *bytes = (size_t)requests * 1000000 + (size_t)max_nodes * 1000 + (size_t)max_context;
    return done(1, 0);
}
kdt_status kdt_attn_plan(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                         void* workspace, size_t workspace_bytes, kdt_stream stream) {
    seen.shape = *shape, seen.batch = *batch;
    seen.workspace = workspace, seen.workspace_bytes = workspace_bytes;
    return done(2, stream);
}
kdt_status kdt_attn_verify_mla(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                               const kdt_attn_mla_tensors* tensors, void* workspace,
                               size_t workspace_bytes, kdt_stream stream) {
    seen.shape = *shape, seen.batch = *batch, seen.mla = *tensors;
    seen.workspace = workspace, seen.workspace_bytes = workspace_bytes;
    return done(3, stream);
}
kdt_status kdt_attn_verify_gqa(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                               const kdt_attn_gqa_tensors* tensors, void* workspace,
                               size_t workspace_bytes, kdt_stream stream) {
    seen.shape = *shape, seen.batch = *batch, seen.gqa = *tensors;
    seen.workspace = workspace, seen.workspace_bytes = workspace_bytes;
    return done(4, stream);
}
kdt_status kdt_rope_append(const kdt_rope_append_params* params, kdt_stream stream) {
    seen.rope = *params;
    return done(5, stream);
}
kdt_status kdt_kv_move(const kdt_kv_move_params* params, kdt_stream stream) {
    seen.move = *params;
    return done(6, stream);
}
kdt_status kdt_pool_create(const kdt_pool_options* o, kdt_pool** pool) {
    (void)o, (void)pool;
    return KDT_UNSUPPORTED;
}
void kdt_pool_destroy(kdt_pool* pool) { (void)pool; }
kdt_status kdt_pool_allocate(kdt_pool* pool, int32_t count, int32_t* pages) {
    (void)pool, (void)count, (void)pages;
    return KDT_UNSUPPORTED;
}
kdt_status kdt_pool_extend(kdt_pool* pool, int32_t last, int32_t count, int32_t* pages) {
    (void)last;
    return kdt_pool_allocate(pool, count, pages);
}
kdt_status kdt_pool_extend_batch(kdt_pool* pool, int32_t requests, const int32_t* counts,
                                 const int32_t* lasts, int32_t* pages, int64_t capacity,
                                 int64_t* offsets) {
    (void)counts, (void)lasts, (void)capacity, (void)offsets;
    return kdt_pool_allocate(pool, requests, pages);
}
kdt_status kdt_pool_free(kdt_pool* pool, const int32_t* pages, int64_t count) {
    (void)pool, (void)pages, (void)count;
    return KDT_UNSUPPORTED;
}
kdt_status kdt_pool_read_stats(const kdt_pool* pool, kdt_pool_stats* stats) {
    (void)pool, (void)stats;
    return KDT_UNSUPPORTED;
}
"""


def compile_c(folder: Path, name: str, source: str, *options: str) -> Path:
    """Compiles C source into folder/name."""
    out = folder / name
    (folder / (name + ".c")).write_text(source)
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}",
         str(folder / (name + ".c")), "-o", str(out), *options],
        check=True, capture_output=True, text=True,
    )
    return out


def compile_stub(folder: Path, name: str = "libkdtree_kernels.so", *options: str) -> Path:
    return compile_c(folder, name, STUB, "-shared", "-fPIC", *options)


class FakeTensor:
    """Shape, strides, dtype and an address; nothing behind it."""

    addresses = iter(range(0x10000, 1 << 40, 0x10000))

    def __init__(self, dtype, *shape, strides=None, device="cuda:0"):
        self.dtype = "torch." + dtype
        self.shape = shape
        self.device = device
        self.is_cuda = device.startswith("cuda")
        dense, step = [], 1
        for length in reversed(shape):
            dense.insert(0, step)
            step *= length
        self._dense = tuple(dense)
        self._strides = tuple(strides or dense)
        self._address = next(self.addresses)

    def stride(self, dim=None):
        return self._strides if dim is None else self._strides[dim]

    def is_contiguous(self):
        return self._strides == self._dense

    def data_ptr(self):
        return self._address


def fake_torch(stream: int = 0x5000) -> types.ModuleType:
    """Enough of torch for kdtree.kernels: a current stream, torch.empty."""
    torch = types.ModuleType("torch")
    torch.uint8 = "torch.uint8"
    torch.cuda = types.SimpleNamespace(
        device=lambda device: contextlib.nullcontext(),
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=stream),
    )
    torch.empty = lambda length, dtype, device: FakeTensor("uint8", length)
    return torch
