"""The switches on a server's memory side: SGLang's allocators, tree and allocating functions, with
requests that come and go (bench/sglang_server.py). Every slot is accounted for after every step,
over 100,000 random operations with each set of switches that this version has, in three parts:
page sizes 1, 16 and 64."""

import os
import random
import time
import types
import unittest
from array import array

from sglang_support import RELEASE, VERSION, needs_sglang, since

needs_sglang()

import sglang_server  # noqa: E402
import torch  # noqa: E402

from kdtree.sglang_ext import parts, report  # noqa: E402
from kdtree.sglang_ext.allocators import is_best_fit  # noqa: E402
from kdtree.sglang_ext.config import DefragConfig  # noqa: E402
from kdtree.sglang_ext.fragmentation import (  # noqa: E402
    Fragmentation,
    free_runs,
    of_row,
    of_rows,
)

OPERATIONS = int(os.environ.get("KDTREE_SGLANG_OPERATIONS", "100000"))
SPECULATES = RELEASE >= (0, 5, 16)  # before, there is no function of its own to drive

# Unsorted ones first: the sort hook stays in the process.
CONFIGS = [config for config in (
    DefragConfig(),
    DefragConfig(evict=0.1),
    DefragConfig(extent=64),
    DefragConfig(sort=True),
    DefragConfig(best_fit=True),
    DefragConfig(sort=True, evict=0.1, extent=64, best_fit=True),
) if not parts.refusals(config, VERSION, look_inside=False)]

sglang_server.prepare(DefragConfig())


class Driver:
    """Random requests on a small server; counts prompts, allocations, commits and ends."""

    def __init__(self, config, page_size, seed, slots=4096, requests=6):
        sglang_server.install(config)
        self.random = random.Random(seed)
        self.server = sglang_server.Server(slots, page_size, requests, 768, config)
        self.requests = requests
        self.operations = 0
        self.beginnings = [self.tokens(100) for _ in range(3)]
        self.finished = []

    def tokens(self, count):
        return array("q", (self.random.randrange(1000) for _ in range(count)))

    def prompt(self):
        start = self.random.choice(self.finished[-8:] + self.beginnings)[:400]
        return start + self.tokens(self.random.randrange(1, 200))

    def round(self):
        server = self.server
        while len(server.running) < self.requests:
            request = server.request(self.prompt(), self.random.randrange(1, 80))
            if not server.fits(request):
                break
            server.start(request)
            self.operations += 1
        speculate = SPECULATES and self.random.random() < 0.9 or \
            any(each.committed < each.kv.kv_allocated_len for each in server.running)
        server.speculate() if speculate else server.decode()
        self.operations += len(server.running)
        server.check_books()
        for request in list(server.running):
            server.accept(request, self.tokens(self.random.randrange(1, 9) if speculate else 1))
            self.operations += 1
            if request.committed - len(request.prompt) >= request.output:
                server.finish(request)
                self.finished.append(request.text)
                self.operations += 1
        server.check_books()

    def end(self):
        """All requests end and the whole tree is evicted: every slot is free again, once."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        server = self.server
        for request in list(server.running):
            server.finish(request)
        server.tree.evict(EvictParams(num_tokens=server.slots))
        assert server.allocator.available_size() == server.slots
        pages = server.allocator.alloc(server.slots) // server.page_size
        assert sorted(set(pages.tolist())) == \
            list(range(1, server.slots // server.page_size + 1))


class Steps(unittest.TestCase):
    def test_slots_are_conserved(self):
        for config in CONFIGS:
            for page_size in (1, 16, 64):
                seed, begin = 7 + page_size, time.time()
                with self.subTest(config=config, page_size=page_size, seed=seed):
                    driver = Driver(config, page_size, seed)
                    while driver.operations < OPERATIONS / 3:
                        driver.round()
                    driver.end()
                    print(f"{driver.operations} operations, page {page_size}, {config}: "
                          f"{time.time() - begin:.1f} s", flush=True)

    @since("0.5.16")
    def test_the_texts_do_not_depend_on_the_switches(self):
        """The same load finds the same prefixes and ends with the same rows' lengths; only which
        slots they are differs, where nothing was evicted earlier than SGLang would."""
        ends = []
        for config in (DefragConfig(), DefragConfig(best_fit=True)):
            driver = Driver(config, 1, 5)
            for _ in range(200):
                driver.round()
            ends.append((driver.server.hit, driver.server.asked,
                         [list(each.text) for each in driver.server.running]))
        self.assertEqual(ends[0], ends[1])


class Eviction(unittest.TestCase):
    def test_a_share_goes_at_once(self):
        """Trap 1. With the pool full, stock eviction leaves next to nothing free."""
        free = []
        for share in (0.0, 0.2):
            driver = Driver(DefragConfig(evict=share), 1, 3)
            samples = []
            for step in range(400):
                driver.round()
                if step >= 200:
                    samples.append(driver.server.allocator.available_size())
            free.append(sum(samples) / len(samples))
        self.assertGreater(free[1], 1.5 * free[0])


@unittest.skipUnless(SPECULATES, "from 0.5.16 on")
class Extents(unittest.TestCase):
    def test_reserves_end_at_multiples_and_rows_are_not_left(self):
        """Trap 9: only what is asked for grows; the row's width is a bound."""
        driver = Driver(DefragConfig(extent=64), 1, 11)
        server, width = driver.server, driver.server.rows.req_to_token.shape[1]
        multiples = 0
        for _ in range(300):
            driver.round()
            for request in server.running:
                self.assertLessEqual(request.kv.kv_allocated_len, width)
                multiples += request.kv.kv_allocated_len % 64 == 0
        self.assertGreater(multiples, 300)

    def test_without_room_the_step_is_sglang_s_own(self):
        config = DefragConfig(extent=64)
        sglang_server.install(config)
        server = sglang_server.Server(260, 1, 2, 768, config)
        for number in range(2):
            server.start(server.request(array("q", range(number * 100, number * 100 + 65)), 60))
        server.speculate()  # to 128 each
        self.assertEqual([each.kv.kv_allocated_len for each in server.running], [128, 128])
        for request in server.running:
            server.accept(request, array("q", [1] * 8 * 4))
        for request in server.running[:]:
            server.accept(request, array("q", [2]))
        server.speculate()  # 130 each: 192 would need 128 of 4 slots
        self.assertEqual([each.kv.kv_allocated_len for each in server.running], [130, 130])
        server.check_books()

    def test_a_page_larger_than_the_extent_is_left_alone(self):
        driver = Driver(DefragConfig(extent=16), 64, 2)
        for _ in range(50):
            driver.round()


@unittest.skipUnless(SPECULATES, "from 0.5.16 on")
class BestFit(unittest.TestCase):
    def test_a_request_goes_on_behind_its_last_slot(self):
        config = DefragConfig(best_fit=True)
        sglang_server.install(config)
        server = sglang_server.Server(4096, 1, 4, 768, config)
        self.assertTrue(is_best_fit(server.allocator))
        prompt = array("q", range(300))
        server.start(server.request(prompt, 100))
        for _ in range(10):
            server.speculate()
            server.accept(server.running[0], array("q", [7] * 8))
        self.assertEqual(server.fragmentation().runs, 1)

    def test_parked_slots_count_as_available_and_come_back(self):
        config = DefragConfig(best_fit=True)
        server = sglang_server.Server(128, 1, 2, 768, config)
        taken = server.allocator.alloc(128)
        self.assertIsNone(server.allocator.alloc(1))
        server.allocator.free(taken[:100])
        self.assertEqual(server.allocator.available_size(), 100)
        self.assertEqual(server.allocator.pool_stats().free_pages, 0)
        self.assertEqual(len(server.allocator.alloc(60)), 60)
        self.assertEqual(server.allocator.pool_stats().free_pages, 40)
        server.allocator.clear()
        self.assertEqual(server.allocator.available_size(), 128)

    def test_a_last_page_that_is_free_again_is_no_error(self):
        config = DefragConfig(best_fit=True)
        server = sglang_server.Server(128, 1, 2, 768, config)
        allocator = server.allocator
        allocator.expect([1], [10])
        first = allocator.alloc(10)
        allocator.expect(None, None)
        allocator.free(first)
        allocator.alloc(allocator.pool_stats().free_pages)  # all but those that are parked
        allocator.alloc(5)  # short: they come back, five of the ten are free
        allocator.expect([1], [2])
        self.assertEqual(len(allocator.alloc(2)), 2)
        self.assertEqual(allocator.misplaced, 1)

    def test_the_builder_s_result_is_replaced_where_it_is_plain(self):
        from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

        from kdtree.sglang_ext import best_fit

        plain = sglang_server.Server(128, 1, 2, 768, DefragConfig()).allocator
        table = types.SimpleNamespace()
        replaced = best_fit._replace(plain, None, req_to_token_pool=table)
        self.assertTrue(is_best_fit(replaced))
        self.assertIsInstance(replaced, type(plain))
        self.assertIs(best_fit._replace(replaced, None, req_to_token_pool=table), replaced)
        hybrid = HybridReqToTokenPool.__new__(HybridReqToTokenPool)
        self.assertIs(best_fit._replace(plain, None, req_to_token_pool=hybrid), plain)


class Gauges(unittest.TestCase):
    def by_hand(self, slots):
        runs = sum(1 for before, after in zip([None, *slots], slots)
                   if before is None or after != before + 1)
        tiles = [slots[at:at + 64] for at in range(0, len(slots) - 63, 64)]
        whole = sum(tile == list(range(tile[0], tile[0] + 64)) for tile in tiles)
        return Fragmentation(len(slots), runs, len(tiles), whole)

    def test_rows(self):
        rows = [[], [5], list(range(63)), list(range(64)), list(range(200)),
                [*range(64), *range(100, 164)], [*range(63), *range(100, 165)], [3, 2, 1]]
        source = random.Random(1)
        for _ in range(200):
            row = []
            while len(row) < 300:
                first = source.randrange(10_000)
                row += range(first, first + source.choice((1, 3, 64, 100)))
            rows.append(row[:source.randrange(301)])
        for row in rows:
            self.assertEqual(of_row(torch.tensor(row, dtype=torch.int32)), self.by_hand(row))
        total = of_rows(torch.tensor(row) for row in rows)
        self.assertEqual(total, sum(map(self.by_hand, rows), Fragmentation()))
        self.assertEqual(Fragmentation().mean_run_tokens, 0.0)

    def test_free_runs(self):
        for pages, runs in (([], 0), ([4], 1), ([4, 2, 3], 1), ([9, 1, 8, 3], 3)):
            self.assertEqual(free_runs(torch.tensor(pages)), runs)

    def test_what_the_log_says(self):
        config = DefragConfig(evict=0.1, extent=64)
        plain = sglang_server.Server(256, 1, 1, 768, DefragConfig()).allocator
        paged = sglang_server.Server(256, 128, 1, 768, DefragConfig()).allocator
        said = [report.started(types.SimpleNamespace(token_to_kv_pool_allocator=each), config)
                for each in (plain, paged)]
        self.assertEqual(said, [
            "kdtree in rank unknown: TokenToKVPoolAllocator; evict 0.1, extent 64",
            "kdtree in rank unknown: PagedTokenToKVPoolAllocator; evict 0.1, "
            "extent 64 not for pages of 128: left as it is"])


if __name__ == "__main__":
    unittest.main()
