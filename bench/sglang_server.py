"""The memory side of an SGLang server, step by step on SGLang's own objects and without a device:
its allocator, req_to_token, prefix tree and the functions that allocate for a prompt, a decode step
and a speculative step. A request's life is what SGLang's scheduler makes of it; the tree's part of
it (cache_unfinished_req, cache_finished_req, checkpoint) changed its name and form from version to
version, so its steps are written out here over match, insert, lock and free.

Needs SGLang, of any supported version, and torch on the path. `prepare()` comes first.
"""

from __future__ import annotations

import functools
import sys
import time
import types
from array import array
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from kdtree.sglang_ext import best_fit_allocators, contract, parts
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.fragmentation import Fragmentation, of_row
from kdtree.sglang_ext.hooks import apply_hooks

RESERVE = 32  # slots beyond the committed ones that a speculative step needs: two steps of 16


def prepare(config: DefragConfig) -> None:
    """Once a process: the plugin's hooks, as its entry point would register them, and torch in
    place of the kernels that need a device."""
    torch.set_num_threads(1)
    install(config)
    _without_device()


def install(config: DefragConfig) -> None:
    """The switches for the servers that are made from now on. What is not sorted has to come before
    what is: the sort hook stays."""
    parts.install(config)
    apply_hooks()


def _without_device() -> None:
    from sglang.srt.mem_cache.allocator import paged

    stand_ins = {
        "assign_req_to_token_pool_func": _assign_rows,
        "get_last_loc": _last_slots,
        "support_triton": lambda _backend: False,
        # What the function above is asked about, by version.
        "attention_backends": lambda: ("none", "none"),
        "get_exec": lambda: types.SimpleNamespace(
            kernel=types.SimpleNamespace(attention_backend="none")),
        "get_server_args": lambda: types.SimpleNamespace(attention_backend="none"),
        "get_global_server_args": lambda: types.SimpleNamespace(attention_backend="none"),
    }
    module = _allocation()
    for name, stand_in in stand_ins.items():
        if hasattr(module, name):
            setattr(module, name, stand_in)
    if not hasattr(paged, "alloc_decode_naive"):  # before 0.5.20 there is the kernel alone
        paged.alloc_extend_kernel = _Kernel(_extend_pages)
        paged.alloc_decode_kernel = _Kernel(_decode_pages)


class _Kernel:
    """Stands for a Triton kernel: kernel[grid](arguments)."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, _grid):
        return self.function


def _extend_pages(prefix_lens, seq_lens, last_slots, free_pages, out, _bs, page_size) -> None:
    pages, slots = iter(free_pages.tolist()), []
    for prefix, end, last in zip(prefix_lens.tolist(), seq_lens.tolist(), last_slots.tolist()):
        for position in range(prefix, end):
            last = next(pages) * page_size if position % page_size == 0 else last + 1
            slots.append(last)
    out.copy_(torch.tensor(slots))


def _decode_pages(seq_lens, last_slots, free_pages, out, bs, page_size) -> None:
    _extend_pages(seq_lens - 1, seq_lens, last_slots, free_pages, out, bs, page_size)


def _assign_rows(rows, req_to_token, begins, ends, slots, _requests) -> None:
    at = 0
    for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist()):
        req_to_token[row, begin:end] = slots[at:at + end - begin].to(torch.int32)
        at += end - begin


def _last_slots(req_to_token, rows, lengths):
    last = req_to_token[rows, (lengths - 1).clamp(min=0).long()].to(torch.int64)
    return torch.where(lengths > 0, last, -1)


def _allocation():
    """The module of SGLang's allocating functions."""
    try:
        from sglang.srt.mem_cache import allocation
    except ImportError:  # before 0.5.16
        from sglang.srt.mem_cache import common as allocation
    return allocation


class _Kv:
    """Request.kv from 0.5.16 on; by 0.5.23 it has the row as well."""

    def __init__(self):
        self.kv_allocated_len = 0
        self.kv_committed_len = 0


class _KvWithRow(_Kv):
    def __init__(self):
        super().__init__()
        self.req_pool_idx = None

    @property
    def holds_kv(self):
        return self.req_pool_idx is not None


@dataclass(eq=False)
class Request:
    """What SGLang's functions read of a request, and the driver's own book-keeping."""

    prompt: array  # token ids
    output: int  # tokens to generate
    kv: _Kv = None
    text: array = None  # prompt and what was generated
    committed: int = 0  # tokens that have their slot for good
    protected: int = 0  # leading ones whose slots are the tree's
    lock: object = None  # on the tree's node where they end
    prefix_indices: torch.Tensor = None
    inflight_middle_chunks: int = 0
    kv_committed_len: int = 0
    dllm_incomplete_ids: tuple = ()

    @property
    def prefix_len(self) -> int:
        return len(self.prefix_indices)


@dataclass
class Costs:
    """Seconds in alloc, free and evict (which frees), and how often they were called."""

    seconds: dict = field(default_factory=lambda: defaultdict(float))
    calls: dict = field(default_factory=lambda: defaultdict(int))

    def timed(self, name: str, function, *arguments, **keywords):
        begin = time.perf_counter()
        result = function(*arguments, **keywords)
        self.seconds[name] += time.perf_counter() - begin
        self.calls[name] += 1
        return result


class Server:
    def __init__(self, slots: int, page_size: int, requests: int, row_width: int,
                 config: DefragConfig):
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

        self.page_size = page_size
        form = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": None, "need_sort": False}
        self.allocator = TokenToKVPoolAllocator(slots, **form) if page_size == 1 else \
            PagedTokenToKVPoolAllocator(slots, page_size, **form)
        if config.best_fit:
            self.allocator = best_fit_allocators.best_fit_of(self.allocator)
        self.rows = ReqToTokenPool(requests, row_width, "cpu", False)
        version = contract.release(contract.installed_version())
        self._unified = version >= (0, 5, 23)
        self.tree = self._make_tree()
        # What 0.5.23 asks the tree of a Request of its own.
        self.tree.prefix_device_indices = lambda request: request.prefix_indices
        self.tree.maybe_hand_to_session = lambda _request: None
        self.slots = slots // page_size * page_size
        self.running: list[Request] = []
        self.costs = Costs()
        # Where SGLang's functions reach them: what they do besides is not ours to time.
        evict = "evict_for_alloc" if hasattr(self.tree, "evict_for_alloc") else "evict"
        for holder, name, kind in ((self.allocator, "alloc", "alloc"),
                                   (self.allocator, "free", "free"), (self.tree, evict, "evict")):
            setattr(holder, name, functools.partial(self.costs.timed, kind,
                                                    getattr(holder, name)))
        self.asked = self.hit = 0  # prompt tokens, and those found in the tree
        self._allocation = _allocation()
        self._kv = _KvWithRow if version >= (0, 5, 23) else _Kv

    # ---- a request's life ------------------------------------------------------------------------

    def request(self, prompt: array, output: int) -> Request:
        request = Request(prompt=prompt, output=output, kv=self._kv(), text=prompt)
        if self._kv is _Kv:
            request.req_pool_idx = None
        return request

    def row(self, request: Request) -> torch.Tensor:
        holder = request if hasattr(request, "req_pool_idx") else request.kv
        return self.rows.req_to_token[holder.req_pool_idx]

    def fits(self, request: Request) -> bool:
        room = len(request.prompt) + request.output + RESERVE + 2 * self.page_size
        held = sum(each.output + len(each.prompt) - each.committed + RESERVE + self.page_size
                   for each in self.running)
        return room + held <= self.allocator.available_size() + self.tree.evictable_size()

    def start(self, request: Request) -> None:
        """Finds the prompt's prefix in the tree and allocates the rest (alloc_for_extend)."""
        indices, node = self._match(request.prompt[:-1])
        request.lock = self._lock(node)
        request.prefix_indices, request.protected = indices, len(indices)
        self.asked += len(request.prompt)
        self.hit += len(indices)
        prefix, length = len(indices), len(request.prompt)
        batch = self._batch(
            [request], prefix_lens=[prefix], extend_lens=[length - prefix],
            extend_num_tokens=length - prefix, seq_lens=torch.tensor([length]),
            seq_lens_cpu=torch.tensor([length]))
        self._allocation.alloc_for_extend(batch)
        request.committed = length
        request.kv.kv_allocated_len = request.kv.kv_committed_len = length
        request.kv_committed_len = length
        self._cache(request)
        self.running.append(request)

    def decode(self) -> None:
        """One token for each running request (alloc_for_decode)."""
        lengths = torch.tensor([request.committed for request in self.running])
        rows = self._row_numbers()
        batch = self._batch(self.running, seq_lens=lengths, seq_lens_cpu=lengths,
                            req_pool_indices=rows, req_pool_indices_cpu=rows,
                            model_config=types.SimpleNamespace(is_encoder_decoder=False))
        self._allocation.alloc_for_decode(batch, 1)
        for request in self.running:
            request.kv.kv_allocated_len = request.committed + 1

    def speculate(self) -> None:
        """Room for one speculative step of every running request (alloc_for_spec_decode, called as
        eagle_prepare_for_decode does)."""
        size = self.page_size
        now = [request.kv.kv_allocated_len for request in self.running]
        need = [max(have, -(-(request.committed + RESERVE) // size) * size)
                for have, request in zip(now, self.running)]
        now_cpu = torch.tensor(now, dtype=torch.int32)
        need_cpu = torch.tensor(need, dtype=torch.int32)
        self._allocation.alloc_for_spec_decode(
            self.tree, self.rows, reqs=self.running, req_pool_indices=self._row_numbers(),
            cur_kv_lens=now_cpu, cur_kv_lens_cpu=now_cpu,
            nxt_kv_lens=need_cpu, nxt_kv_lens_cpu=need_cpu,
            num_needed_tokens=sum(need) - sum(now), batch=self._batch(self.running))

    def accept(self, request: Request, tokens: array) -> None:
        """Commits generated tokens, whose slots are there."""
        request.text = request.text + tokens
        request.committed += len(tokens)
        request.kv.kv_committed_len = request.kv_committed_len = request.committed
        if request.committed > request.kv.kv_allocated_len:
            raise AssertionError(f"{request.committed} tokens in {request.kv.kv_allocated_len}")

    def finish(self, request: Request) -> None:
        """Its rows go to the tree, its reserve back to the free list (release_kv_cache)."""
        row, size = self.row(request), self.page_size
        key = self._key(request.text[:request.committed])
        whole = len(key)
        found = self._insert(key, row[:whole].to(torch.int64), request.protected)
        self._free_parts(row, (
            (request.protected, found), (whole, request.committed),
            (-(-request.committed // size) * size, request.kv.kv_allocated_len)))
        self._unlock(request.lock)
        self.rows.free(request)
        self.running.remove(request)

    def _batch(self, requests: list[Request], **more) -> types.SimpleNamespace:
        """What SGLang's functions read of a ScheduleBatch."""
        return types.SimpleNamespace(
            reqs=requests, device="cpu", tree_cache=self.tree, req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator, maybe_evict_swa=lambda: None,
            is_dllm=lambda: False, hisparse_coordinator=None, **more)

    def _cache(self, request: Request) -> None:
        """The prompt's rows go to the tree (cache_unfinished_req)."""
        row = self.row(request)
        key = self._key(request.prompt)
        found = self._insert(key, row[:len(key)].to(torch.int64), request.protected)
        self._free_parts(row, ((request.protected, found),))
        indices, node = self._match(request.prompt)
        row[request.protected:len(indices)] = indices[request.protected:].to(torch.int32)
        self._unlock(request.lock)
        request.lock, request.protected = self._lock(node), len(indices)

    def _free_parts(self, row: torch.Tensor, parts: tuple) -> None:
        self.allocator.free_group_begin()
        for begin, end in parts:
            if end > begin:
                self.allocator.free(row[begin:end].to(torch.int64))
        self.allocator.free_group_end()

    # ---- the tree --------------------------------------------------------------------------------

    def _key(self, text: array):
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(text).page_aligned(self.page_size)

    def _match(self, text: array):
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        result = self.tree.match_prefix(MatchPrefixParams(key=self._key(text)))
        if hasattr(result, "device_indices"):
            return result.device_indices, result.last_device_node
        node = result.last_device_node
        return self.tree.path_device_indices(node), node

    def _insert(self, key, slots: torch.Tensor, protected: int) -> int:
        """Up to where the tree had the text already; what the request has of its own before is to
        be freed."""
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        params = InsertParams(key=key, value=slots, prev_prefix_len=protected)
        found = self.tree.insert(params).prefix_len
        return protected if self._unified else found  # the unified tree frees them itself

    def _lock(self, node):
        if self._unified:
            return self.tree.lock(node)
        self.tree.inc_lock_ref(node)
        return node

    def _unlock(self, lock) -> None:
        self.tree.unlock(lock) if self._unified else self.tree.dec_lock_ref(lock)

    def _make_tree(self):
        """The version's default. The unified tree's core is the one in Python: the other is built
        for a newer torch than the tests have."""
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams

        form = {"disable": False, "req_to_token_pool": self.rows, "page_size": self.page_size,
                "token_to_kv_pool_allocator": self.allocator}
        if not self._unified:
            from sglang.srt.mem_cache.radix_cache import RadixCache

            return RadixCache(CacheInitParams(**form))
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        return UnifiedRadixCache(CacheInitParams(
            **form, tree_components=(ComponentType.FULL,), tree_core_backend="python"))

    def _row_numbers(self) -> torch.Tensor:
        return torch.tensor([request.req_pool_idx if hasattr(request, "req_pool_idx")
                             else request.kv.req_pool_idx for request in self.running])

    # ---- what is measured and checked ------------------------------------------------------------

    def fragmentation(self) -> Fragmentation:
        return sum((of_row(self.row(request)[:request.committed]) for request in self.running),
                   Fragmentation())

    def check_books(self) -> None:
        """Every slot is free, the tree's, or one request's; AssertionError."""
        free = self.allocator.available_size()
        cached = self.tree.evictable_size() + self.tree.protected_size()
        size = self.page_size
        held = 0
        seen: set[int] = set()
        for request in self.running:
            own = self.row(request)[request.protected:request.kv.kv_allocated_len] // size
            pages = set(own.tolist())
            if pages & seen or 0 in pages:
                raise AssertionError(f"pages {sorted(pages & seen) or [0]} belong to two requests")
            seen |= pages
            held += len(pages) * size
        if free + cached + held != self.slots:
            raise AssertionError(f"{free} free, {cached} cached, {held} held of {self.slots}")


if __name__ == "__main__":
    sys.exit("a module of sglang_runs.py and of tests/sglang")
