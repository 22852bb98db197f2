"""KvPagePool through the built library: KDTREE_LIBRARY_PATH, the package's folder, the system's,
build/cuda or build/cpu. Skipped where there is none. Needs no device."""

import ctypes
import os
import unittest
from array import array

from support import ROOT

from kdtree import KernelError
from kdtree import kernels as kd

for built in ("cuda/libkdtree_kernels.so", "cpu/libkdtree_pool.so"):
    if "KDTREE_LIBRARY_PATH" not in os.environ and (ROOT / "build" / built).is_file():
        os.environ["KDTREE_LIBRARY_PATH"] = str(ROOT / "build" / built)
try:
    kd.KvPagePool(1).close()
    reason = None
except KernelError as error:
    reason = str(error)


class HostTensor:
    """An int32 tensor on the host, as far as the pool looks."""

    is_cuda = False
    device = "cpu"

    def __init__(self, values):
        self.values = array("i", values)

    def data_ptr(self):
        return self.values.buffer_info()[0]

    def numpy(self):
        return memoryview(self.values)


@unittest.skipIf(reason, reason)
class Pool(unittest.TestCase):
    def test_a_request_s_life(self):
        with kd.KvPagePool(16, reserved=1) as pool:
            self.assertEqual(pool.allocate(3), array("i", [1, 2, 3]))
            self.assertEqual(pool.extend(3, 2), array("i", [4, 5]))
            self.assertEqual(pool.stats(), kd.PoolStats(16, 1, 10, 1, 10))
            pool.free([2, 3])
            self.assertEqual(pool.stats(), kd.PoolStats(16, 1, 12, 2, 10))
            self.assertEqual(pool.allocate(0), array("i"))

    def test_short_is_none(self):
        with kd.KvPagePool(4) as pool:
            self.assertIsNone(pool.allocate(5))
            self.assertIsNone(pool.allocate(1 << 29))
            self.assertIsNone(pool.extend_batch([3, 2]))
            self.assertIsNone(pool.extend_batch([1 << 30] * 4))
            self.assertEqual(pool.stats().free_pages, 4)

    def test_batch(self):
        with kd.KvPagePool(12) as pool:
            first, second = pool.extend_batch([2, 2])
            self.assertEqual([list(first), list(second)], [[0, 1], [2, 3]])
            pages = pool.extend_batch([1, 0, 2], lasts=[3, 1, -1])
            self.assertEqual([list(each) for each in pages], [[4], [], [5, 6]])
            self.assertEqual(pool.extend_flat([2, 1], lasts=[6, -1]),
                             (array("i", [7, 8, 9]), array("q", [0, 2, 3])))
            self.assertEqual(pool.extend_batch([]), [])
            with self.assertRaisesRegex(ValueError, "lasts: 1 requests, counts has 2"):
                pool.extend_batch([1, 1], lasts=[-1])

    def test_placement(self):
        for placement, expected in ((kd.PoolPlacement.UNSORTED, 6), (kd.PoolPlacement.SORTED, 1)):
            with kd.KvPagePool(8, placement=placement) as pool:
                pool.allocate(8)
                pool.free([6])
                pool.free([1])
                self.assertEqual(list(pool.allocate(1)), [expected])

    def test_what_free_takes(self):
        with kd.KvPagePool(8) as pool:
            pool.allocate(8)
            pool.free(array("i", [0]))
            pool.free(HostTensor([1, 2]))
            pool.free((ctypes.c_int32 * 2)(3, 4))
            pool.free(page for page in (5, 6))
            pool.free([])
            self.assertEqual(pool.stats().free_pages, 7)
            with self.assertRaisesRegex(TypeError, "pages: format 'q' of 1 dimensions"):
                pool.free(array("q", [7]))

    def test_the_caller_s_books_are_wrong(self):
        with kd.KvPagePool(8) as pool:
            pool.allocate(4)
            for pages, message in (([1, 1], "pages.1. is page 1 of 8, which stands twice"),
                                   ([1, 4], "pages.1. is page 4 of 8, which is free already"),
                                   ([-1], "out of range")):
                with self.assertRaisesRegex(KernelError, message) as caught:
                    pool.free(pages)
                self.assertEqual(caught.exception.status, kd.Status.INVALID)
            with self.assertRaisesRegex(KernelError, "count is -1"):
                pool.allocate(-1)
            with self.assertRaisesRegex(KernelError, r"counts\[1\] is -2"):
                pool.extend_batch([1, -2])
            with self.assertRaisesRegex(KernelError, "last is page 5"):
                pool.extend(5, 1)
            self.assertEqual(pool.stats().free_pages, 4)

    def test_options(self):
        with self.assertRaisesRegex(KernelError, "reserved is 9, must be 0..8"):
            kd.KvPagePool(8, reserved=9)
        with self.assertRaisesRegex(KernelError, "pages is 0"):
            kd.KvPagePool(0)

    def test_closed(self):
        pool = kd.KvPagePool(8)
        pool.close()
        pool.close()
        with self.assertRaisesRegex(ValueError, "the pool is closed"):
            pool.allocate(1)


if __name__ == "__main__":
    unittest.main()
