"""Registers the attention backend `kdtree_verify` with SGLang."""

from __future__ import annotations

import logging
import sys

from kdtree.sglang_ext import contract
from kdtree.sglang_ext.contract_types import Touched

logger = logging.getLogger(__name__)

NAME = "kdtree_verify"

_BACKEND = "sglang.srt.layers.attention.triton_backend:TritonAttnBackend"
_INIT = ("self", "model_runner", "skip_prefill", "kv_indptr_buf")
_EXTEND = ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache", "sinks")
# What stands in the seam takes the place of this function and is called as it is.
_SEAM = (
    "q_extend", "k_extend", "v_extend", "o_extend", "k_buffer", "v_buffer", "qo_indptr",
    "kv_indptr", "kv_indices", "custom_mask", "is_causal", "mask_indptr", "max_len_extend",
    "k_scale", "v_scale", "sm_scale", "logit_cap", "skip_prefix_custom_mask",
    "sliding_window_size", "sinks", "window_kv_offsets", "xai_temperature_len", "max_bs",
)

CONTRACT: tuple[Touched, ...] = (
    Touched("sglang.srt.layers.attention.attention_registry:register_attention_backend",
            {"*": ("name",)}),
    Touched("sglang.srt.layers.attention.attention_registry:ATTENTION_BACKENDS", {"*": ()}),
    Touched("sglang.srt.server_args:add_attention_backend_choices",
            {"0.5.23": ("iterable",), "*": ("choices",)}),
    Touched(f"{_BACKEND}.__init__", {"0.5.23": (*_INIT, "dllm_fa4"), "*": _INIT}),
    Touched(f"{_BACKEND}.forward_extend", {
        "0.5.14": _EXTEND,
        "0.5.15.post1": _EXTEND,
        "*": (*_EXTEND, "score_mod", "aux_tensors"),
    }),
    Touched(f"{_BACKEND}.init_forward_metadata", {"*": ("self", "forward_batch")}),
    Touched(f"{_BACKEND}.init_forward_metadata_out_graph",
            {"*": ("self", "forward_batch", "in_capture")}),
    Touched("sglang.srt.layers.attention.triton_ops.verify_splitkv:verify_splitkv_fwd",
            {"0.5.14": _SEAM, "0.5.15.post1": _SEAM}),
    Touched("sglang.kernels.ops.attention.verify_splitkv:verify_splitkv_fwd", {
        "0.5.16": _SEAM, "0.5.17": _SEAM, "0.5.18": _SEAM, "0.5.23": _SEAM,
    }),
)


def install_verify() -> None:
    """Makes `--attention-backend kdtree_verify` known. Has to run before SGLang parses its
    arguments, in every process; a second time does nothing. For a version that is not supported the
    name stays unknown, so that asking for it is an error."""
    version = contract.installed_version()
    problem = contract.version_problem(version)
    if problem:
        logger.error("kdtree: no attention backend %s: %s", NAME, problem)
        return
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.server_args import add_attention_backend_choices

    if NAME in attention_registry.ATTENTION_BACKENDS:
        return

    @attention_registry.register_attention_backend(NAME)
    def create(runner):
        # Looked into and imported here, because that takes SGLang's Triton backend and many
        # processes never attend.
        lines = contract.problems(CONTRACT, version)
        if lines:
            raise RuntimeError(f"{NAME} cannot serve SGLang {version}: " + "; ".join(lines))
        from kdtree.sglang_ext.verify_backend import KdtreeVerifyBackend

        _export_counts()
        return KdtreeVerifyBackend(runner)

    add_attention_backend_choices([NAME])


def _export_counts() -> None:
    """Adds them to the server's state and metrics, where this is a scheduler's process."""
    from kdtree.sglang_ext import hooks, metrics, report

    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    problems = contract.problems(report.CONTRACT + metrics.CONTRACT, contract.installed_version())
    try:
        if problems:
            raise RuntimeError("; ".join(problems))
        report.export_state()
        metrics.install()
    except RuntimeError as error:
        logger.warning("kdtree: the server's state and metrics will not have ours: %s", error)
    hooks.apply_hooks()


def verify_counts() -> dict[str, object]:
    """{"served": calls, "refused": {reason: calls}} of this process; a captured graph counts
    once."""
    backend = sys.modules.get("kdtree.sglang_ext.verify_backend")
    return backend.TALLY.as_dict() if backend else {"served": 0, "refused": {}}
