"""The gauges where SGLang exports its own: its collector in a process with the plugin, read back as
its HTTP server reads what all processes have written."""

import tempfile
import unittest

from sglang_support import RELEASE, needs_sglang, run

needs_sglang()

COLLECTOR = """
from kdtree.sglang_ext import hooks, metrics, report
metrics.install()
hooks.apply_hooks()
from sglang.srt.observability import metrics_collector
class Options:
    prefill_delayer_max_delay_passes = 30
    __getattr__ = lambda self, name: None
for name in ("get_schedule", "get_observability"):  # 0.5.23 reads its options there
    setattr(metrics_collector, name, Options)
labels = {"model_name": "none", "tp_rank": 3, "moe_ep_rank": 3}
collector = metrics_collector.SchedulerMetricsCollector(labels=labels, server_args=Options())
stats = metrics_collector.SchedulerStats()
"""

SCRAPED = COLLECTOR + """
readings = iter([
    {"verify_served": 5, "mean_run_tokens": 12.5},
    {"verify_served": 7, "mean_run_tokens": 80.0, "contiguous_tile_share": 0.75}])
report.gauges = lambda: next(readings)
collector.log_stats(stats)
collector.log_stats(stats)  # within the period: nothing is read
metrics._next_reading = 0.0
collector.log_stats(stats)
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""

GAUGES = """
import types, torch
from kdtree.sglang_ext import metrics, report
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
print(report.gauges())
scheduler = types.SimpleNamespace(
    token_to_kv_pool_allocator=TokenToKVPoolAllocator(200, torch.bfloat16, "cpu", None, False),
    req_to_token_pool=types.SimpleNamespace(
        req_to_token=torch.arange(300, dtype=torch.int32).reshape(1, 300) + 1),
    running_batch=types.SimpleNamespace(reqs=[types.SimpleNamespace(
        req_pool_idx=0, kv=types.SimpleNamespace(req_pool_idx=0), seqlen=129)]),
    ps=types.SimpleNamespace(tp_rank=0))
report._after_start(None, scheduler)
print(report.gauges())
print(set(report.gauges()) == set(metrics._DOCUMENTATION))
"""


ALLOCATORS = COLLECTOR + """
import types, torch
from sglang.srt.mem_cache.allocator import swa
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
class Pool(swa.BaseSWAKVPool):
    swa_req_ring_size = None
    def __init__(self):
        self.full_kv_pool = self.swa_kv_pool = types.SimpleNamespace(dtype=torch.bfloat16)
    def register_mapping(self, *_arguments):
        pass
    __getattr__ = lambda self, name: lambda *arguments, **keywords: 1
Pool.__abstractmethods__ = frozenset()
form = dict(dtype=torch.bfloat16, device="cpu", kvcache=None, need_sort=False)
kinds = {"token": TokenToKVPoolAllocator(200, **form),
         "paged": PagedTokenToKVPoolAllocator(320, 16, **form),
         "sorted": TokenToKVPoolAllocator(200, **(form | {"need_sort": True})),
         "window": swa.SWATokenToKVPoolAllocator(
             64, 32, page_size=1, **(form | {"kvcache": Pool()}))}
if BEST_FIT:
    from kdtree.sglang_ext.best_fit_allocators import best_fit_of
    kinds["best fit"] = best_fit_of(TokenToKVPoolAllocator(200, **form))
    kinds["best fit, paged"] = best_fit_of(PagedTokenToKVPoolAllocator(320, 16, **form))
request = types.SimpleNamespace(req_pool_idx=0, kv=types.SimpleNamespace(req_pool_idx=0),
                                seqlen=129)
for name, allocator in kinds.items():
    if name != "window":
        taken = allocator.alloc(64)
        allocator.free(taken[16:32])  # of best fit's books later: it reads them when it is short
    report._scheduler = types.SimpleNamespace(
        token_to_kv_pool_allocator=allocator,
        req_to_token_pool=types.SimpleNamespace(
            req_to_token=torch.arange(300, dtype=torch.int32).reshape(1, 300) + 1),
        running_batch=types.SimpleNamespace(reqs=[request] * 3))
    metrics._next_reading = 0.0
    collector.log_stats(stats)
    assert metrics._next_reading < 1e300, name
    values = {name: gauge.labels(**labels)._value.get() for name, gauge in metrics._gauges.items()}
    print("KIND", name, values["requests"], values["mean_run_tokens"], values["free_pages"],
          values["free_runs"] if name != "window" else "none")
print("ROWS", [len(row) for row in report._rows(report._scheduler, 2, 150)])
print("ROWS", [len(row) for row in report._rows(report._scheduler)])
report._scheduler.running_batch = None
metrics._next_reading = 0.0
collector.log_stats(stats)
collector.log_stats(stats)
print("GOES ON")
"""


EXPORT = """
import logging, sys
logging.basicConfig(stream=sys.stdout)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector
from kdtree.sglang_ext import hooks, metrics, report, verify
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
def found():
    return SchedulerMetricsCollector.log_stats, Scheduler.get_internal_state
stock, contract = found(), metrics.CONTRACT
metrics.CONTRACT = (Touched(f"{metrics._COLLECTOR}.log_stats", {"*": ("self",)}),)
verify._export_counts()
print("LEFT OUT", found() == stock)
metrics.CONTRACT = contract
report.install(DefragConfig(evict=0.1))
metrics.install()
hooks.apply_hooks()
ours = found()
print("HOOKED", *(mine is not theirs for mine, theirs in zip(ours, stock)))
verify._export_counts()
print("AGAIN", found() == ours)
"""


class Metrics(unittest.TestCase):
    def test_scraped(self):
        with tempfile.TemporaryDirectory() as folder:
            code, said = run(self, "-c", SCRAPED, PROMETHEUS_MULTIPROC_DIR=folder)
        self.assertEqual(code, 0, said)
        self.assertIn("sglang:num_running_reqs", said)
        lines = [line for line in said.splitlines() if line.startswith("kdtree:")]
        labels = '{model_name="none",moe_ep_rank="3",tp_rank="3"}'
        self.assertEqual(sorted(lines), [f"kdtree:contiguous_tile_share{labels} 0.75",
                                         f"kdtree:mean_run_tokens{labels} 80.0",
                                         f"kdtree:verify_served{labels} 7.0"])

    def test_what_they_are(self):
        code, said = run(self, "-c", GAUGES)
        self.assertEqual(code, 0, said)
        counts = {"verify_served": 0, "verify_refused": 0}
        pool = {"requests": 1, "mean_run_tokens": 128.0, "contiguous_tile_share": 1.0,
                "free_pages": 200, "free_runs": 1, "waits": 0}
        self.assertEqual(said.strip().splitlines()[-3:],
                         [str(counts), str(counts | pool), "True"])

    def test_another_signature_leaves_them_out(self):
        """Where kdtree_verify brings them, without a switch that would have looked before."""
        code, said = run(self, "-c", EXPORT)
        self.assertEqual(code, 0, said)
        lines = [line for line in said.splitlines() if "kdtree" in line or line.isupper()
                 or line.startswith(("LEFT", "HOOKED", "AGAIN"))]
        self.assertEqual(len(lines), 4, said)
        self.assertRegex(lines[0], r"will not have ours: .*log_stats is .*\(self\) is needed")
        self.assertEqual(lines[1:], ["LEFT OUT True", "HOOKED True True", "AGAIN True"])

    def test_every_allocator_and_a_failure(self):
        """Through SGLang's collector, which the scheduler calls: what fails there would end it."""
        best_fit = RELEASE >= (0, 5, 16)
        with tempfile.TemporaryDirectory() as folder:
            code, said = run(self, "-c", f"BEST_FIT = {best_fit}" + ALLOCATORS,
                             PROMETHEUS_MULTIPROC_DIR=folder)
        self.assertEqual(code, 0, said)
        kinds = ["KIND token 3.0 128.0 152.0 2", "KIND paged 3.0 128.0 17.0 2",
                 "KIND sorted 3.0 128.0 152.0 2", "KIND window 3.0 128.0 32.0 none"]
        if best_fit:
            kinds += ["KIND best fit 3.0 128.0 136.0 1", "KIND best fit, paged 3.0 128.0 16.0 1"]
        self.assertEqual([line.removesuffix(".0") for line in said.splitlines()
                          if line.startswith("KIND")], kinds)
        self.assertEqual([line for line in said.splitlines() if line.startswith("ROWS")],
                         ["ROWS [128, 22]", "ROWS [128, 128, 128]"])
        self.assertEqual(said.count("kdtree: no more gauges in this process"), 1)
        self.assertIn("GOES ON", said.splitlines())


if __name__ == "__main__":
    unittest.main()
