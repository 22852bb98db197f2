"""The parts of the plugin: what each touches, from which version on, and how it is switched on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kdtree.sglang_ext import (
    allocators,
    best_fit,
    contract,
    defrag_sort,
    evict,
    hooks,
    kv_move,
    metrics,
    report,
    spec_decode,
    verify,
)
from kdtree.sglang_ext.config import BESTFIT, EVICT, EXTENT, KV_MOVE, SORT, DefragConfig
from kdtree.sglang_ext.contract_types import Touched


@dataclass(frozen=True)
class Part:
    switch: str  # the variable that asks for it
    asked: Callable[[DefragConfig], bool]
    since: str  # the first version that has what it needs
    contract: tuple[Touched, ...]


_COMMON = hooks.CONTRACT + report.CONTRACT + metrics.CONTRACT + allocators.CONTRACT

PARTS = (
    Part(SORT, lambda config: config.sort, defrag_sort.SINCE, _COMMON + defrag_sort.CONTRACT),
    Part(EVICT, lambda config: config.evict > 0, evict.SINCE, _COMMON + evict.CONTRACT),
    Part(EXTENT, lambda config: config.extent > 0, spec_decode.SINCE,
         _COMMON + spec_decode.CONTRACT),
    Part(BESTFIT, lambda config: config.best_fit, best_fit.SINCE,
         _COMMON + best_fit.CONTRACT + spec_decode.CONTRACT),
    Part(KV_MOVE, lambda config: config.kv_move, kv_move.SINCE, _COMMON + kv_move.CONTRACT),
)


def install(config: DefragConfig) -> None:
    """Registers the hooks of everything that is asked for; what was checked before can act."""
    for part in (defrag_sort, evict, best_fit, spec_decode, kv_move):
        part.install(config)


def all_rows() -> tuple[Touched, ...]:
    rows = [row for part in PARTS for row in part.contract]
    return tuple({row.path: row for row in (*rows, *verify.CONTRACT)}.values())


def refusals(config: DefragConfig, version: str | None, look_inside: bool) -> list[str]:
    """Why what is asked for cannot act, one line each; none: it can. `look_inside` compares the
    contract as well, for which SGLang's modules are imported."""
    lines = []
    for part in PARTS:
        if not part.asked(config):
            continue
        wrong = contract.version_problem(version, part.since)
        found = [wrong] if wrong else \
            contract.problems(part.contract, version) if look_inside else []
        lines += [f"{part.switch}: {line}" for line in found]
    return lines
