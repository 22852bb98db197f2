"""The engine of include/kdtree/kdtree.h from Python: no compiled module, no dependency.

    with Engine("model.gguf") as engine:
        print(engine.generate("Why is the sky blue?", max_tokens=50).text)

generate() runs a request to its end. submit() and poll() are for several at once: while start() has
a thread of the library stepping, or between calls of step(). All methods may be called from any
thread. EngineError carries the library's message.
"""

from __future__ import annotations

import ctypes
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from kdtree import _engine_structs as _structs
from kdtree._engine_structs import Drafter, DraftShape, FinishReason, Status
from kdtree._library import ENGINE_NAME, open_library

__all__ = ["Delta", "DraftShape", "Drafter", "Engine", "EngineError", "FinishReason",
           "PositionLogprobs", "Status", "version"]


class EngineError(RuntimeError):
    """The library is missing, unfit, or refused a call; `status` is its Status, if it gave one."""

    def __init__(self, message: str, status: Status | None = None):
        super().__init__(message)
        self.status = status


@cache
def load() -> ctypes.CDLL:
    """The engine's library, loaded at the first call."""
    return open_library(ENGINE_NAME, "the engine's library", _structs.declare,
                        ("kdtree_abi", _structs.ABI), EngineError)


def _call(function: str, *arguments) -> None:
    library = load()
    status = getattr(library, function)(*arguments)
    if status != Status.OK:
        message = (library.kdtree_last_error() or b"").decode(errors="replace")
        known = status in list(Status)
        raise EngineError(message or function, Status(status) if known else None)


def version() -> str:
    """Version and commit of the library that was loaded."""
    return load().kdtree_version().decode()


@dataclass
class PositionLogprobs:
    """Natural, of the target's own distribution: before temperature, penalties, bias and mask."""

    logprob: float  # of the token that stands there
    top: list[tuple[int, float]]  # the likeliest tokens and their log-probabilities


@dataclass
class Delta:
    """What is new of a request."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.NONE
    error: str = ""
    stats: dict[str, float] = field(default_factory=dict)  # of kdtree_request_stats

    @property
    def finished(self) -> bool:
        return self.finish_reason != FinishReason.NONE

    def _add(self, other: Delta) -> None:
        self.ids += other.ids
        self.text += other.text
        self.logprobs += other.logprobs
        self.prompt_logprobs += other.prompt_logprobs
        self.finish_reason, self.error, self.stats = other.finish_reason, other.error, other.stats


def _values(struct: ctypes.Structure) -> dict:
    """The fields of a struct of numbers."""
    values = {}
    for name, _ in struct._fields_:
        value = getattr(struct, name)
        if name not in ("struct_bytes", "reserved"):
            values[name] = _values(value) if isinstance(value, ctypes.Structure) else value
    return values


def _positions(array, count: int) -> list[PositionLogprobs]:
    return [
        PositionLogprobs(
            array[i].logprob,
            [(array[i].top[t].token, array[i].top[t].logprob) for t in range(array[i].top_count)],
        )
        for i in range(count)
    ]


def _ints(values: Sequence[int]):
    return (ctypes.c_int32 * len(values))(*array("i", values))  # array() refuses what does not fit


# What the C side holds on to until it says that it is done: a callback must outlive its request.
_masks: dict[int, object] = {}


@_structs.Release
def _release_mask(key: int | None) -> None:
    _masks.pop(key or 0, None)


def _mask_callback(mask: Callable[[list[int], memoryview], None]):
    @_structs.LogitMask
    def callback(_user, answer, answer_tokens, allowed, allowed_words):
        try:
            words = (ctypes.c_uint32 * allowed_words).from_address(
                ctypes.addressof(allowed.contents))
            mask(answer[:answer_tokens] if answer_tokens else [], memoryview(words).cast("B")
                 .cast("I"))
            return 0
        except BaseException:  # no exception may enter the library
            return 1

    return callback


class Engine:
    """A loaded model with its requests. Settings not given are the library's defaults."""

    def __init__(self, model: str | None = None, *, drafter: Drafter = Drafter.DEFAULT,
                 draft_model_path: str | None = None, context_length: int = 0, threads: int = 0,
                 max_running_requests: int = 0, max_total_tokens: int = 0,
                 chunked_prefill_size: int = 0, max_draft_tokens: int = 0,
                 reference_kernels: bool = False, page_size: int = 0, radix_cache: bool = True,
                 kv_extent: int = 0, kv_headroom: int = 0, kv_relocate: int = 0,
                 kv_evict_batch: float = 0):
        self._engine = None
        options = _structs.COptions(
            drafter=drafter,
            model=None if model is None else str(model).encode(),
            draft_model_path=None if draft_model_path is None else str(draft_model_path).encode(),
            context_length=context_length,
            threads=threads,
            max_running_requests=max_running_requests,
            max_total_tokens=max_total_tokens,
            chunked_prefill_size=chunked_prefill_size,
            max_draft_tokens=max_draft_tokens,
            reference_kernels=reference_kernels,
            page_size=page_size,
            disable_radix_cache=not radix_cache,
            kv_extent=kv_extent,
            kv_headroom=kv_headroom,
            kv_relocate=kv_relocate,
            kv_evict_batch=kv_evict_batch,
        )
        engine = ctypes.c_void_p()
        _call("kdtree_engine_create", ctypes.byref(options), ctypes.byref(engine))
        self._engine = engine

    def close(self) -> None:
        """Frees the model. Other threads must have left the engine's methods."""
        if self._engine is not None:
            load().kdtree_engine_free(self._engine)
            self._engine = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_engine", None) is not None:
            self.close()

    # ---- text and tokens -------------------------------------------------------------------------

    def info(self) -> dict[str, int]:
        """The fields of kdtree_model_info."""
        info = _structs.CModelInfo()
        self._call("kdtree_engine_info", ctypes.byref(info))
        return _values(info)

    def tokenize(self, text: str, parse_special: bool = False) -> list[int]:
        given = text.encode()
        return self._result("kdtree_tokenize", given, len(given), parse_special)[0]

    def detokenize(self, ids: Sequence[int], with_special: bool = False) -> str:
        raw = self._result("kdtree_detokenize", _ints(ids), len(ids), with_special)[1]
        return raw.decode(errors="replace")

    def apply_chat_template(self, messages: list[dict[str, str]],
                            add_generation_prompt: bool = True,
                            **variables) -> tuple[list[int], str]:
        """Ids and text of the model's template over the messages; other variables by name."""
        given = json.dumps({"messages": messages, **variables}).encode()
        ids, text = self._result("kdtree_apply_chat_template", given, len(given),
                                 add_generation_prompt)
        return ids, text.decode(errors="replace")

    # ---- requests --------------------------------------------------------------------------------

    def submit(self, prompt: str | Sequence[int], *, parse_special: bool = False,
               max_tokens: int = 0, min_tokens: int = 0, ignore_eos: bool = False,
               temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
               seed: int = 0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0,
               frequency_penalty: float = 0.0, stop: Sequence[str] = (),
               logit_bias: dict[int, float] | None = None,
               logit_mask: Callable[[list[int], memoryview], None] | None = None,
               top_logprobs: int | None = None, top_prompt_logprobs: int | None = None,
               prompt_only: bool = False, draft_shape: DraftShape = DraftShape.TREE,
               draft_tokens: int = 0, known_continuation: Sequence[int] = ()) -> int:
        """Queues a request, text or ids, and returns its id. logit_mask(answer, allowed) clears
        bits of `allowed`, 32-bit words, for the tokens that must not follow `answer`; it runs on
        the thread that steps, and what it raises ends the request."""
        request = _structs.CRequest(
            samples=1,
            parse_special=parse_special,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            sampling=_structs.CSampling(
                temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
                frequency_penalty=frequency_penalty),
            logprobs=top_logprobs is not None,
            top_logprobs=top_logprobs or 0,
            prompt_logprobs=top_prompt_logprobs is not None,
            top_prompt_logprobs=top_prompt_logprobs or 0,
            prompt_only=prompt_only,
            draft_shape=draft_shape,
            draft_tokens=draft_tokens,
        )
        if isinstance(prompt, str):
            request.prompt_text = text = prompt.encode()
            request.prompt_text_bytes = len(text)
        else:
            request.prompt_ids = _ints(prompt)
            request.prompt_id_count = len(prompt)
        request.stop = (ctypes.c_char_p * len(stop))(*(each.encode() for each in stop))
        request.stop_count = len(stop)
        bias = logit_bias or {}
        request.logit_bias = (_structs.CLogitBias * len(bias))(*bias.items())
        request.logit_bias_count = len(bias)
        request.known_continuation = _ints(known_continuation)
        request.known_continuation_count = len(known_continuation)
        if logit_mask is not None:
            callback = _mask_callback(logit_mask)
            request.logit_mask = callback
            request.logit_mask_user = id(callback)
            request.logit_mask_release = _release_mask
            _masks[id(callback)] = callback
        ids = (ctypes.c_uint64 * 1)()
        try:
            self._call("kdtree_submit", ctypes.byref(request), ids, 1)
        except EngineError:
            if logit_mask is not None:
                _release_mask(id(callback))
            raise
        return ids[0]

    def cancel(self, request: int) -> None:
        self._call("kdtree_cancel", request)

    def drop(self, request: int) -> None:
        self._call("kdtree_drop", request)

    def poll(self, request: int, timeout_ms: int = 0) -> Delta:
        """What is new; waits up to timeout_ms for news, -1: without end."""
        raw = ctypes.POINTER(_structs.CDelta)()
        self._call("kdtree_poll", request, timeout_ms, ctypes.byref(raw))
        try:
            delta = raw.contents
            return Delta(
                ids=delta.ids[: delta.id_count],
                text=ctypes.string_at(delta.text, delta.text_bytes).decode(errors="replace"),
                logprobs=_positions(delta.logprobs, delta.logprob_count),
                prompt_logprobs=_positions(delta.prompt_logprobs, delta.prompt_logprob_count),
                finish_reason=FinishReason(delta.finish_reason),
                error=delta.error.decode(errors="replace"),
                stats=_values(delta.stats),
            )
        finally:
            load().kdtree_delta_free(raw)

    def wait(self, timeout_ms: int = -1, most: int = 64) -> list[int]:
        """Requests with news that nobody polled yet."""
        ids, count = (ctypes.c_uint64 * most)(), ctypes.c_int32()
        self._call("kdtree_wait", timeout_ms, ids, most, ctypes.byref(count))
        return ids[: count.value]

    def stream(self, prompt: str | Sequence[int], **settings) -> Iterator[Delta]:
        """Submits as submit() does and yields deltas; the request is dropped with the iterator."""
        request = self.submit(prompt, **settings)
        finished = False
        try:
            while not finished:
                delta = self._next(request)
                finished = delta.finished
                if delta.error:
                    raise EngineError(delta.error)
                yield delta
        finally:
            if not finished:
                self.drop(request)

    def generate(self, prompt: str | Sequence[int], **settings) -> Delta:
        """Runs one request to its end, as submit() takes it, and returns all of it."""
        whole = Delta()
        for delta in self.stream(prompt, **settings):
            whole._add(delta)
        return whole

    def _next(self, request: int) -> Delta:
        """News of a request: by stepping, or from whoever steps."""
        try:
            self.step()
        except EngineError as error:
            if error.status != Status.BUSY:
                raise
            return self.poll(request, 100)
        return self.poll(request)

    # ---- stepping --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Runs one round; False if there was nothing to do."""
        ran = ctypes.c_int32()
        self._call("kdtree_step", ctypes.byref(ran))
        return ran.value != 0

    def start(self) -> None:
        """Lets a thread of the library step."""
        self._call("kdtree_start")

    def stop(self) -> None:
        self._call("kdtree_stop")

    def stats(self) -> dict:
        """The fields of kdtree_engine_stats."""
        stats = _structs.CEngineStats()
        self._call("kdtree_stats", ctypes.byref(stats))
        return _values(stats)

    def _call(self, function: str, *arguments) -> None:
        if self._engine is None:
            raise EngineError("the engine is closed", Status.CLOSED)
        _call(function, self._engine, *arguments)

    def _result(self, function: str, *arguments) -> tuple[list[int], bytes]:
        raw = ctypes.POINTER(_structs.CResult)()
        self._call(function, *arguments, ctypes.byref(raw))
        try:
            result = raw.contents
            return result.ids[: result.id_count], ctypes.string_at(result.text, result.text_bytes)
        finally:
            load().kdtree_result_free(raw)
