"""How contiguous the slots of requests and the free list are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TILE = 64  # tokens that the verify kernels load at once


@dataclass(frozen=True)
class Fragmentation:
    tokens: int = 0  # of all rows
    runs: int = 0  # stretches of neighbouring slots in them
    tiles: int = 0  # whole blocks of 64 tokens, counted from the start of a row
    contiguous_tiles: int = 0  # those whose slots follow each other

    @property
    def mean_run_tokens(self) -> float:
        return self.tokens / self.runs if self.runs else 0.0

    @property
    def contiguous_tile_share(self) -> float:
        return self.contiguous_tiles / self.tiles if self.tiles else 0.0

    def __add__(self, other: Fragmentation) -> Fragmentation:
        return Fragmentation(self.tokens + other.tokens, self.runs + other.runs,
                             self.tiles + other.tiles,
                             self.contiguous_tiles + other.contiguous_tiles)


def of_row(slots: Tensor) -> Fragmentation:
    """Of one request's slots, integers [tokens], in the order of its tokens."""
    tokens = len(slots)
    if tokens == 0:
        return Fragmentation()
    breaks = (slots[1:] - slots[:-1]) != 1
    tiles = tokens // TILE
    # A break between two tiles belongs to neither: of each tile its inner 63 steps count.
    inner = breaks[:tiles * TILE - 1] if tiles else breaks[:0]
    broken = sum(1 for tile in range(tiles) if inner[tile * TILE:tile * TILE + TILE - 1].any())
    return Fragmentation(tokens, 1 + int(breaks.sum()), tiles, tiles - broken)


def of_rows(rows: Iterable[Tensor]) -> Fragmentation:
    return sum((of_row(row) for row in rows), Fragmentation())


def free_runs(pages: Tensor) -> int:
    """Stretches of neighbours among free pages, integers [pages] in any order."""
    if len(pages) == 0:
        return 0
    ascending = pages.sort().values
    return 1 + int(((ascending[1:] - ascending[:-1]) != 1).sum())
