"""kdtree-engine through ctypes: kdtree.engine, the whole engine, and kdtree.kernels, its CUDA
kernels for other hosts."""

from kdtree._library import KernelError

__all__ = ["KernelError"]
__version__ = "0.1.0"
