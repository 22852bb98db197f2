"""Registers with SGLang's HookRegistry, each hook once."""

from __future__ import annotations

from collections.abc import Callable

from kdtree.sglang_ext.contract_types import Touched

CONTRACT = (
    Touched("sglang.srt.plugins.hook_registry:HookRegistry.register",
            {"*": ("cls", "target", "hook", "hook_type", "source")}),
    Touched("sglang.srt.plugins.hook_registry:HookRegistry.apply_hooks", {"*": ("cls",)}),
    Touched("sglang.srt.plugins.hook_registry:HookRegistry._patched", {"*": ()}),
)

_registered: set[tuple[str, Callable]] = set()


def hook(target: str, function: Callable, kind: str) -> None:
    """`kind`: before, after or around; see HookRegistry for what `function` gets and returns. It
    acts from the next HookRegistry.apply_hooks() on, which load_plugins() calls."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if (target, function) in _registered:
        return
    if target in HookRegistry._patched:
        # SGLang would skip ours without a word.
        raise RuntimeError(f"{target} was hooked by another plugin before; load kdtree with it")
    HookRegistry.register(target, function, HookType(kind))
    _registered.add((target, function))


def apply_hooks() -> None:
    """For who registers after load_plugins()."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.apply_hooks()
