"""The ctypes structs and enums against include/kdtree/kernels.h, as gcc lays it out."""

import ctypes
import unittest

from mirror import MirrorTest

from kdtree import _structs

STRUCTS = {
    "kdt_attn_shape": _structs.CAttnShape,
    "kdt_attn_batch": _structs.CAttnBatch,
    "kdt_attn_mla_tensors": _structs.CMlaTensors,
    "kdt_attn_gqa_tensors": _structs.CGqaTensors,
    "kdt_rope_append_params": _structs.CRopeAppend,
    "kdt_kv_move_params": _structs.CKvMove,
    "kdt_pool_options": _structs.CPoolOptions,
    "kdt_pool_stats": _structs.CPoolStats,
}
VALUES = {
    "KDT_KERNELS_ABI": _structs.ABI,
    "KDT_OK": _structs.Status.OK,
    "KDT_INVALID": _structs.Status.INVALID,
    "KDT_UNSUPPORTED": _structs.Status.UNSUPPORTED,
    "KDT_CUDA_ERROR": _structs.Status.CUDA_ERROR,
    "KDT_SHORT": _structs.Status.SHORT,
    "KDT_ATTN_MLA": _structs.AttnKind.MLA,
    "KDT_ATTN_GQA": _structs.AttnKind.GQA,
    "KDT_KV_BF16": _structs.KvFormat.BF16,
    "KDT_KV_FP8": _structs.KvFormat.FP8,
    "KDT_KV_FP8_MLA656": _structs.KvFormat.FP8_MLA656,
    "KDT_ATTN_FAST": _structs.AttnMode.FAST,
    "KDT_ATTN_DETERMINISTIC": _structs.AttnMode.DETERMINISTIC,
    "KDT_PATH_AUTO": _structs.AttnPath.AUTO,
    "KDT_PATH_WGMMA": _structs.AttnPath.WGMMA,
    "KDT_PATH_MMA_SYNC": _structs.AttnPath.MMA_SYNC,
    "KDT_ROPE_ADJACENT": _structs.RopePairing.ADJACENT,
    "KDT_ROPE_HALF": _structs.RopePairing.HALF,
    "KDT_POOL_UNSORTED": _structs.PoolPlacement.UNSORTED,
    "KDT_POOL_SORTED": _structs.PoolPlacement.SORTED,
    "KDT_POOL_BEST_FIT": _structs.PoolPlacement.BEST_FIT,
}


class Structs(MirrorTest, unittest.TestCase):
    include = "kdtree/kernels.h"
    prefix = "kdt"
    structs = STRUCTS
    values = VALUES
    module = _structs

    def test_struct_bytes_is_set(self):
        for mirror in STRUCTS.values():
            self.assertEqual(mirror().struct_bytes, ctypes.sizeof(mirror))


if __name__ == "__main__":
    unittest.main()
