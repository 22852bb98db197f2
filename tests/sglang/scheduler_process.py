"""Spawned by test_process.py: SGLang's own run_scheduler_process in a child, as its Engine starts
it. The Scheduler in it makes allocators and nothing else, since there is no device for a model."""

import functools
import json
import logging
import multiprocessing
import sys
import types


def _small_scheduler(real):
    """A Scheduler without a model. Its __init__ has the real one's signature."""
    import torch
    from sglang.srt.managers.io_struct import GetInternalStateReqOutput
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    class Small(real):
        @functools.wraps(real.__init__)
        def __init__(self, *_arguments, **_keywords):
            self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(
                200, torch.bfloat16, "cpu", None, need_sort=False)
            rows = torch.arange(300, dtype=torch.int32).reshape(1, 300) + 1
            self.req_to_token_pool = types.SimpleNamespace(req_to_token=rows)
            kv = types.SimpleNamespace(req_pool_idx=0)
            self.running_batch = types.SimpleNamespace(
                reqs=[types.SimpleNamespace(req_pool_idx=0, kv=kv, seqlen=129)])
            self.ps = types.SimpleNamespace(tp_rank=3, pp_rank=0, dp_rank=None)
            self.metrics_reporter = types.SimpleNamespace(_shutdown_fpm=lambda: None)
            self.async_d2h_worker, self.gracefully_exit = None, False

        @functools.wraps(real.get_internal_state)
        def get_internal_state(self, recv_req):
            return GetInternalStateReqOutput(internal_state={"from": "sglang"})

        def get_init_info(self):
            return {}

        def run_event_loop(self):
            print("STATE " + json.dumps(self.get_internal_state(None).internal_state), flush=True)

    Small.__name__, Small.__module__ = real.__name__, real.__module__
    return Small


def child(pipe):
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    from sglang.srt.managers import scheduler

    scheduler.Scheduler = _small_scheduler(scheduler.Scheduler)
    for name in ("configure_scheduler_process", "publish", "spawn_world_rank", "SpawnRanks"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, lambda *arguments, **keywords: None)
    scheduler.get_observability = lambda: types.SimpleNamespace(enable_trace=False)
    arguments = types.SimpleNamespace(enable_trace=False)
    parameters = scheduler.run_scheduler_process.__code__.co_varnames[
        :scheduler.run_scheduler_process.__code__.co_argcount]
    values = {name: 0 for name in parameters if not name.startswith("display")}
    scheduler.run_scheduler_process(
        **{**values, "server_args": arguments, "port_args": None, "pipe_writer": pipe})


if __name__ == "__main__":
    receiver, sender = multiprocessing.get_context("spawn").Pipe(False)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(sender,))
    process.start()
    process.join(300)
    sys.exit(process.exitcode)
