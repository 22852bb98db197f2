"""The plugin's switches, all of them environment variables, read and checked here alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "KDTREE_DEFRAG_"
SORT = PREFIX + "SORT"
EVICT = PREFIX + "EVICT"
EXTENT = PREFIX + "EXTENT"
BESTFIT = PREFIX + "BESTFIT"
KV_MOVE = "KDTREE_KV_MOVE"
VERIFY_CHECK = "KDTREE_VERIFY_CHECK"

MASK_CHECKS = ("first", "always", "off")


class ConfigError(ValueError):
    """A variable is misspelt or has a value that it cannot have; the message names both."""


@dataclass(frozen=True)
class DefragConfig:
    """What keeps a request's slots together, and how rows move. Every default is SGLang's own
    behaviour."""

    sort: bool = False  # free lists are sorted before they are used again
    evict: float = 0.0  # share of what may be evicted that goes at once; 0: the shortage alone
    extent: int = 0  # tokens: a request's decode reserve grows to multiples of it; 0: as needed
    best_fit: bool = False  # pages from kdt_pool instead of SGLang's list
    kv_move: bool = False  # accepted rows of all layers move at once

    def any(self) -> bool:
        return self != DefragConfig()

    @staticmethod
    def from_env(environment: Mapping[str, str] | None = None) -> DefragConfig:
        """Raises ConfigError. An empty variable counts as unset."""
        values = os.environ if environment is None else environment
        known = (SORT, EVICT, EXTENT, BESTFIT)
        for name in values:
            if name.startswith(PREFIX) and name not in known:
                raise ConfigError(f"{name} is no switch; there are {', '.join(known)}")
        return DefragConfig(
            sort=_flag(values, SORT),
            evict=_share(values, EVICT),
            extent=_extent(values, EXTENT),
            best_fit=_flag(values, BESTFIT),
            kv_move=_flag(values, KV_MOVE),
        )


def mask_check(environment: Mapping[str, str] | None = None) -> str:
    """Which masks kdtree_verify looks at, one of MASK_CHECKS. Raises ConfigError."""
    values = os.environ if environment is None else environment
    mode = values.get(VERIFY_CHECK) or MASK_CHECKS[0]
    if mode not in MASK_CHECKS:
        raise ConfigError(f"{VERIFY_CHECK}={mode}: one of {', '.join(MASK_CHECKS)} is needed")
    return mode


def _flag(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name, "")
    if value not in ("", "0", "1"):
        raise ConfigError(f"{name}={value}: 0 or 1 is needed")
    return value == "1"


def _share(values: Mapping[str, str], name: str) -> float:
    value = values.get(name) or "0"
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 0.5:
        raise ConfigError(f"{name}={value}: a share from 0 to 0.5 is needed, as 0.1 for a tenth")
    return share


def _extent(values: Mapping[str, str], name: str) -> int:
    value = values.get(name) or "0"
    extent = int(value) if value.isdecimal() else -1
    if extent != 0 and not (16 <= extent <= 1024 and extent.bit_count() == 1):
        raise ConfigError(f"{name}={value}: 0 or a power of two from 16 to 1024 is needed, in "
                          "tokens")
    return extent
