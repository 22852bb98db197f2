"""The gauges where SGLang exports its own: its collector in a process with the plugin, read back as
its HTTP server reads what all processes have written."""

import tempfile
import unittest

from sglang_support import needs_sglang, run

needs_sglang()

SCRAPED = """
from kdtree.sglang_ext import hooks, metrics, report
from kdtree.sglang_ext.config import DefragConfig
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


if __name__ == "__main__":
    unittest.main()
