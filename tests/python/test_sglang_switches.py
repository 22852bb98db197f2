"""The plugin for SGLang as far as it needs neither SGLang nor torch: switches, the arithmetic of
batched eviction and extents, and what it refuses."""

import contextlib
import importlib.metadata
import io
import logging
import random
import sys
import types
import unittest
from unittest import mock

import support  # noqa: F401  (puts the package on the path)

from kdtree.sglang_ext import contract, doctor, extents, parts, register
from kdtree.sglang_ext.allocators import row_of
from kdtree.sglang_ext.config import ConfigError, DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.evict import tokens_to_free


def installed(version):
    def of(name):
        if name != "sglang" or version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    return mock.patch("importlib.metadata.version", of)


class Switches(unittest.TestCase):
    def test_nothing_set_is_sglang_s_own(self):
        for environment in ({}, {"KDTREE_DEFRAG_SORT": "", "KDTREE_DEFRAG_EVICT": "0",
                                 "KDTREE_DEFRAG_EXTENT": "0", "KDTREE_CACHE": "/x"}):
            self.assertEqual(DefragConfig.from_env(environment), DefragConfig())
        self.assertFalse(DefragConfig().any())

    def test_values(self):
        config = DefragConfig.from_env({"KDTREE_DEFRAG_SORT": "1", "KDTREE_DEFRAG_EVICT": "0.15",
                                        "KDTREE_DEFRAG_EXTENT": "64", "KDTREE_DEFRAG_BESTFIT": "1"})
        self.assertEqual(config, DefragConfig(True, 0.15, 64, True))

    def test_wrong_values_are_named(self):
        for name, value in (("SORT", "yes"), ("SORT", "2"), ("EVICT", "10%"), ("EVICT", "0.6"),
                            ("EVICT", "-0.1"), ("EVICT", "nan"), ("EXTENT", "48"),
                            ("EXTENT", "8"), ("EXTENT", "2048"), ("EXTENT", "-64"),
                            ("BESTFIT", "true")):
            with self.assertRaisesRegex(ConfigError, f"KDTREE_DEFRAG_{name}={value}: "):
                DefragConfig.from_env({f"KDTREE_DEFRAG_{name}": value})

    def test_a_misspelt_switch_is_an_error(self):
        with self.assertRaisesRegex(ConfigError, "KDTREE_DEFRAG_SROT is no switch"):
            DefragConfig.from_env({"KDTREE_DEFRAG_SROT": "1"})


class Arithmetic(unittest.TestCase):
    def test_eviction(self):
        self.assertEqual(tokens_to_free(100, 100, 1000, 0.1), 100)  # nothing is short
        self.assertEqual(tokens_to_free(100, 90, 1000, 0.0), 100)
        self.assertEqual(tokens_to_free(100, 90, 1000, 0.1) - 90, 100)  # what SGLang then evicts
        self.assertEqual(tokens_to_free(500, 90, 1000, 0.1), 500)  # the shortage is more
        self.assertEqual(tokens_to_free(100, 90, 0, 0.1), 100)

    def test_extents_only_grow_what_grows_and_stay_in_the_row(self):
        self.assertEqual(extents.grown_lengths([64, 100, 10], [90, 100, 65], 64, 1000),
                         [128, 100, 128])
        self.assertEqual(extents.grown_lengths([950], [961], 64, 1000), [961])
        self.assertEqual(extents.grown_lengths([950], [959], 64, 1000), [960])
        random_lengths = random.Random(3)
        for _ in range(2000):
            extent = 1 << random_lengths.randrange(4, 11)
            width = random_lengths.randrange(1, 3000)
            need = random_lengths.randrange(1, width + 1)
            have = random_lengths.randrange(0, need + 1)
            grown, = extents.grown_lengths([have], [need], extent, width)
            self.assertTrue(need <= grown <= width, (have, need, extent, width, grown))
            self.assertLess(grown - need, extent)

    def test_a_request_s_row(self):
        old = types.SimpleNamespace(req_pool_idx=3, kv=types.SimpleNamespace())
        new = types.SimpleNamespace(kv=types.SimpleNamespace(req_pool_idx=4))
        self.assertEqual((row_of(old), row_of(new)), (3, 4))


class Contract(unittest.TestCase):
    def setUp(self):
        module = types.ModuleType("a_host")
        exec("class Pool:\n"
             "    size = 1\n"
             "    def take(self, count, *, last=None): ...\n"
             "    @classmethod\n"
             "    def make(cls, size): ...\n"
             "def free(pool, ids): ...\n", module.__dict__)
        patch = mock.patch.dict(sys.modules, {"a_host": module})
        patch.start()
        self.addCleanup(patch.stop)

    def test_what_is_found(self):
        for path, signature in (("Pool.take", ("self", "count", "last")), ("Pool.size", ()),
                                ("Pool.make", ("cls", "size")), ("free", ("pool", "ids")),
                                ("Pool", ()), ("Pool.give", None), ("gone", None)):
            self.assertEqual(contract.found("a_host:" + path), signature, path)
        self.assertIsNone(contract.found("no_such_host.part:free"))

    def test_a_difference_is_named(self):
        row = Touched("a_host:free", {"*": ("pool", "pages")})
        self.assertEqual(contract.problems([row], "0.5.18"),
                         ["a_host:free is (pool, ids), (pool, pages) is needed"])
        gone = Touched("a_host:gone", {"*": ("pool",)})
        self.assertEqual(contract.problems([gone], "0.5.18"),
                         ["a_host:gone is absent, (pool) is needed"])
        unexpected = Touched("a_host:free", {"0.5.23": ("pool", "ids")})
        self.assertEqual(contract.problems([unexpected], "0.5.18"),
                         ["a_host:free is (pool, ids), absent is needed"])
        self.assertEqual(contract.problems([unexpected], "0.5.23"), [])

    def test_between_tested_versions_either_neighbour_will_do(self):
        old = Touched("a_host:free", {"*": ("pool", "ids"), "0.5.23": ("pool",)})
        new = Touched("a_host:free", {"*": ("pool",), "0.5.23": ("pool", "ids")})
        elsewhere = Touched("a_host:free", {"*": ("pool",), "0.5.14": ("pool", "ids")})
        self.assertEqual(contract.problems([old, new], "0.5.20"), [])
        self.assertEqual(len(contract.problems([elsewhere], "0.5.20")), 1)

    def test_versions(self):
        for version in (*contract.TESTED, "0.5.20", "0.5.15", "0.5.23.post1", "0.5.17.dev3+x"):
            self.assertIsNone(contract.version_problem(version), version)
        for version in (None, "0.5.13", "0.5.24", "0.6.0", "1.0.0", "main", "0.5"):
            self.assertIsNotNone(contract.version_problem(version), version)
        self.assertIsNotNone(contract.version_problem("0.5.15.post1", since="0.5.16"))

    def test_every_switch_has_rows_for_every_version_it_is_offered_for(self):
        for part in parts.PARTS:
            for version in contract.TESTED:
                if contract.version_problem(version, part.since) is None:
                    present = [row for row in part.contract
                               if contract.expected(row, version) != (None,)]
                    self.assertGreater(len(present), 5, (part.switch, version))


class Refusals(unittest.TestCase):
    """What register() does in a process without SGLang's scheduler."""

    def setUp(self):
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)
        patch = mock.patch.dict("os.environ", clear=False)
        patch.start()
        self.addCleanup(patch.stop)

    def register(self, version, **switches):
        # The attention backend is made known to SGLang itself, which is not here.
        with installed(version), mock.patch.dict("os.environ", switches), \
                mock.patch("kdtree.sglang_ext.install_verify"):
            register()

    def test_no_switch_is_never_refused(self):
        self.register("9.9.9")
        self.register(None)

    def test_a_supported_version(self):
        self.register("0.5.18", KDTREE_DEFRAG_SORT="1", KDTREE_DEFRAG_EXTENT="64")

    def test_an_unsupported_version_ends_the_process(self):
        with self.assertRaisesRegex(SystemExit, "KDTREE_DEFRAG_SORT: SGLang 9.9.9 is not supp"):
            self.register("9.9.9", KDTREE_DEFRAG_SORT="1")

    def test_a_switch_that_this_version_cannot_have(self):
        with self.assertRaisesRegex(SystemExit, "KDTREE_DEFRAG_EXTENT: SGLang 0.5.14 is not"):
            self.register("0.5.14", KDTREE_DEFRAG_SORT="1", KDTREE_DEFRAG_EXTENT="64")

    def test_a_wrong_value_ends_the_process(self):
        with self.assertRaisesRegex(SystemExit, "KDTREE_DEFRAG_EVICT=lots"):
            self.register("0.5.18", KDTREE_DEFRAG_EVICT="lots")

    def doctor(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()):
            return doctor.main(list(arguments)), out.getvalue()

    def test_the_doctor_without_sglang(self):
        with installed(None):
            code, said = self.doctor("doctor")
        self.assertEqual(code, 3)
        self.assertIn("not installed", said)

    def test_the_doctor_s_usage(self):
        self.assertEqual(self.doctor()[0], 2)
        self.assertEqual(self.doctor("nurse")[0], 2)


if __name__ == "__main__":
    unittest.main()
