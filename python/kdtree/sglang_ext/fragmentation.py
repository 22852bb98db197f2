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
    follows = (slots[1:] - slots[:-1]) == 1
    tiles = tokens // TILE
    # A break between two tiles belongs to neither: of each tile its inner 63 steps count.
    inner = slots[:tiles * TILE].view(tiles, TILE)
    contiguous = ((inner[:, 1:] - inner[:, :-1]) == 1).all(1)
    return Fragmentation(tokens, tokens - int(follows.sum()), tiles, int(contiguous.sum()))


def of_rows(rows: Iterable[Tensor]) -> Fragmentation:
    return sum((of_row(row) for row in rows), Fragmentation())


def free_runs(pages: Tensor) -> int:
    """Stretches of neighbours among free pages, distinct integers [pages] from 0 up in any order.
    Counted on their device; takes a byte for each page up to the highest one, and no sorting."""
    import torch

    if len(pages) == 0:
        return 0
    free = torch.zeros(int(pages.max()) + 2, dtype=torch.bool, device=pages.device)
    free[pages.long() + 1] = True
    return int((free[1:] & ~free[:-1]).sum())
