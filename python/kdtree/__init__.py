"""kdtree: the tree-verify attention kernels of kdtree-engine, through ctypes. See kdtree.kernels."""

from kdtree._library import KernelError

__all__ = ["KernelError"]
__version__ = "0.1.0"
