"""What the tests of the verify backend share: SGLang importable without a GPU, random trees.

Run with the files of one SGLang wheel on PYTHONPATH and the requirements that are pinned for it
installed (./check --sglang). On the CPU its Triton kernels run interpreted; sgl_kernel, which the
pins leave out, is a stand-in, and flashinfer where SGLang names it, on CUDA.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path

import required

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.dont_write_bytecode = True

# The Rust core of the prefix tree needs another torch than the pinned one.
os.environ.setdefault("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")


class _Missing:
    """A name of a stand-in: it can be looked up, looked into and inherited from, not called."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __mro_entries__(self, _bases):
        return ()

    def __call__(self, *_arguments, **_keywords):
        if self._name.endswith(".is_arch_support_pdl"):  # asked where a CUDA device is
            return False
        raise RuntimeError(f"{self._name} was called, and is not installed here")


class _StandIn(types.ModuleType):
    """A module of a package that is not installed."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, *packages: str):
        self._packages = packages

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        required.absent("torch is not installed: ./check --sglang")


def require_sglang(device: str = "cpu") -> str:
    """The version of the SGLang on PYTHONPATH; ends the script where there is none."""
    require_torch()
    if importlib.util.find_spec("sglang") is None:
        required.absent("SGLang is not on the path: ./check --sglang")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            required.no_device()
    else:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    stand_ins = ["sgl_kernel"]
    if device == "cuda" and importlib.util.find_spec("flashinfer") is None:
        stand_ins.append("flashinfer")
    sys.meta_path.insert(0, _StandInFinder(*stand_ins))
    from sglang.version import __version__

    required.check_version(__version__)
    return __version__


# ---- trees -------------------------------------------------------------------------------------


def random_parents(random, nodes: int) -> list[int]:
    """Parents of a random tree, each before its children; -1 for the root. `random`: numpy's."""
    depth_first = random.random() < 0.5
    return [-1] + [int(random.integers(max(0, i - 2) if depth_first else 0, i))
                   for i in range(1, nodes)]


def chain_parents(nodes: int) -> list[int]:
    return list(range(-1, nodes - 1))


def mask_of(parents: list[int]) -> list[list[bool]]:
    """Row i: the nodes that node i attends to."""
    rows: list[list[bool]] = []
    for i, parent in enumerate(parents):
        row = list(rows[parent]) if parent >= 0 else [False] * len(parents)
        row[i] = True
        rows.append(row)
    return rows
