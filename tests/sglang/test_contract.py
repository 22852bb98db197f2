"""The tables of what the plugin touches against the wheel that is on the path."""

import unittest

from sglang_support import VERSION, needs_sglang

needs_sglang()

from kdtree.sglang_ext import contract, parts  # noqa: E402


class Wheel(unittest.TestCase):
    def test_it_is_a_tested_version(self):
        self.assertIn(VERSION, contract.TESTED)

    def test_every_row_is_as_the_table_says(self):
        for row in parts.all_rows():
            allowed, = contract.expected(row, VERSION)
            self.assertEqual(contract.found(row.path), allowed, row.path)

    def test_nothing_supported_is_refused(self):
        for part in parts.PARTS:
            if contract.version_problem(VERSION, part.since) is None:
                self.assertEqual(contract.problems(part.contract, VERSION), [], part.switch)

    def test_a_row_that_does_not_fit_is_refused(self):
        from kdtree.sglang_ext.contract_types import Touched

        row = Touched("sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator.alloc",
                      {"*": ("self", "tokens")})
        self.assertEqual(len(contract.problems([row], VERSION)), 1)


if __name__ == "__main__":
    unittest.main()
