"""SGLang's MLA verify kit through the CUDA kernels, eager and captured. Needs a GPU of theirs,
libkdtree_kernels.so, and an SGLang whose requirements are installed."""

import unittest

import verify_support as support

VERSION = support.require_sglang("cuda")

import torch
from kdtree.sglang_ext.verify import NAME, install_verify, verify_counts

install_verify()

import verify_cases as cases
from sglang.srt.model_executor.forward_batch_info import ForwardMode

SIZES = dict(kv_lora_rank=512, qk_rope_head_dim=64, dtype=torch.bfloat16, device="cuda")


class Kit(cases.Strict):
    def setUp(self):
        self.before = verify_counts()

    def case(self, page_size=1, prefix_lens=(4, 7)):
        return cases.mla.MLAAttentionCase(
            name="gpu", backend=NAME, forward_mode=ForwardMode.TARGET_VERIFY, num_heads=8,
            page_size=page_size, prefix_lens=prefix_lens, extend_lens=(3,) * len(prefix_lens))

    def check_served(self):
        now = verify_counts()
        self.assertGreater(now["served"], self.before["served"])
        self.assertEqual(now["refused"], self.before["refused"])

    def test_eager(self):
        for topk, spec_kind, page_size in ((1, "eagle", 1), (2, "eagle", 1), (2, "ngram", 1),
                                           (2, "eagle", 16), (1, "dflash", 1)):
            with self.subTest(topk=topk, spec_kind=spec_kind, page_size=page_size):
                cases.verify_kit.run_mla_eagle_verify_case(
                    self, self.case(page_size), topk=topk, spec_kind=spec_kind, **SIZES)
        self.check_served()

    def test_captured(self):
        for topk in (1, 2):
            with self.subTest(topk=topk):
                cases.verify_kit.run_mla_eagle_verify_cuda_graph_case(
                    self, self.case(), topk=topk, **SIZES)
        self.check_served()


if __name__ == "__main__":
    unittest.main()
