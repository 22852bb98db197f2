"""The plugin's gauges as Prometheus metrics, wherever SGLang exports its own (--enable-metrics):
set when its collector is, with its labels."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from kdtree.sglang_ext import report
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

if TYPE_CHECKING:
    from prometheus_client import Gauge

logger = logging.getLogger(__name__)

_COLLECTOR = "sglang.srt.observability.metrics_collector:SchedulerMetricsCollector"

CONTRACT = (
    Touched(f"{_COLLECTOR}.log_stats", {"*": ("self", "stats")}),
    Touched(f"{_COLLECTOR}._gauge_cls", {"*": ()}),
)

# Reading them waits for the device and copies rows of running requests to the host, so not at every
# step that SGLang logs; Prometheus asks every 15 seconds by default.
PERIOD_SECONDS = 10.0

_DOCUMENTATION = {
    "requests": "Running requests.",
    "mean_run_tokens": "Mean length of runs of neighbouring slots of running requests (the first "
                       "64 and a million tokens), tokens.",
    "contiguous_tile_share": "Share of 64-token tiles whose slots follow each other.",
    "free_pages": "Free pages.",
    "free_runs": "Runs of neighbouring free pages.",
    "waits": "Times that best fit read freed pages from the device.",
    "verify_served": "Calls of the verify seam that our kernels served, since the start; a "
                     "captured CUDA graph counts once, its replays do not.",
    "verify_refused": "Calls of the verify seam that SGLang's kernel served, since the start; above "
                      "0 it may serve every step, since a captured CUDA graph counts once.",
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
    try:
        for name, value in report.gauges().items():
            _gauge(collector, name).labels(**collector.labels).set(value)
    except Exception:  # the scheduler would end of it
        _next_reading = math.inf
        logger.exception("kdtree: no more gauges in this process, they could not be read")


def _gauge(collector, name: str) -> Gauge:
    """Of the kind that the collector itself uses."""
    if name not in _gauges:
        from prometheus_client import Gauge

        _gauges[name] = (collector._gauge_cls or Gauge)(
            name=f"kdtree:{name}", documentation=_DOCUMENTATION[name],
            labelnames=list(collector.labels), multiprocess_mode="mostrecent")
    return _gauges[name]
