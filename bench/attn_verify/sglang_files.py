"""SGLang's Triton kernels from its files alone: importing the package would need the whole server."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import torch

ATTENTION = "sglang.kernels.ops.attention"  # 0.5.16 and later


class _Utils(types.ModuleType):
    """As much of sglang.srt.utils as its attention kernels ask for."""

    def __getattr__(self, name: str):
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda: name == "is_cuda" and torch.cuda.is_available()

    def get_device_core_count(self, device: int = 0) -> int:
        if not torch.cuda.is_available():
            return 0
        return torch.cuda.get_device_properties(device).multi_processor_count


def kernel_module(name: str) -> types.ModuleType:
    """The module `name` of sglang.kernels.ops.attention; the SGLang found first on sys.path."""
    full_name = f"{ATTENTION}.{name}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    if ATTENTION not in sys.modules:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("sglang is not installed")
        root = Path(list(spec.submodule_search_locations)[0])
        for package_name in ("sglang", "sglang.kernels", "sglang.kernels.ops", ATTENTION,
                             "sglang.srt"):
            package = types.ModuleType(package_name)
            package.__path__ = [str(root.joinpath(*package_name.split(".")[1:]))]
            sys.modules[package_name] = package
        sys.modules["sglang.srt.utils"] = _Utils("sglang.srt.utils")
    return importlib.import_module(full_name)
