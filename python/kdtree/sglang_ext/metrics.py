"""The plugin's gauges as Prometheus metrics, wherever SGLang exports its own (--enable-metrics):
set when its collector is, with its labels."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kdtree.sglang_ext import report
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

if TYPE_CHECKING:
    from prometheus_client import Gauge

_COLLECTOR = "sglang.srt.observability.metrics_collector:SchedulerMetricsCollector"

CONTRACT = (
    Touched(f"{_COLLECTOR}.log_stats", {"*": ("self", "stats")}),
    Touched(f"{_COLLECTOR}._gauge_cls", {"*": ()}),
)

# Reading them copies the rows of the running requests to the host, so not at every step that SGLang
# logs; Prometheus asks every 15 seconds by default.
PERIOD_SECONDS = 10.0

_DOCUMENTATION = {
    "requests": "Running requests.",
    "mean_run_tokens": "Mean length of runs of neighbouring slots of running requests, tokens.",
    "contiguous_tile_share": "Share of 64-token tiles whose slots follow each other.",
    "free_pages": "Free pages.",
    "free_runs": "Runs of neighbouring free pages.",
    "waits": "Times that best fit read freed pages from the device.",
    "verify_served": "Calls of the verify seam that our kernels served.",
    "verify_refused": "Calls of the verify seam that SGLang's kernel served.",
}

_gauges: dict[str, Gauge] = {}  # Prometheus knows a name once a process
_next_reading = 0.0


def install() -> None:
    hook(_COLLECTOR.replace(":", ".") + ".log_stats", _after_log_stats, "after")


def _after_log_stats(_result, collector, _stats) -> None:
    global _next_reading
    now = time.monotonic()
    if now < _next_reading:
        return
    _next_reading = now + PERIOD_SECONDS
    for name, value in report.gauges().items():
        _gauge(collector, name).labels(**collector.labels).set(value)


def _gauge(collector, name: str) -> Gauge:
    """Of the kind that the collector itself uses."""
    if name not in _gauges:
        from prometheus_client import Gauge

        _gauges[name] = (collector._gauge_cls or Gauge)(
            name=f"kdtree:{name}", documentation=_DOCUMENTATION[name],
            labelnames=list(collector.labels), multiprocess_mode="mostrecent")
    return _gauges[name]
