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


class ConfigError(ValueError):
    """A variable is misspelt or has a value that it cannot have; the message names both."""


@dataclass(frozen=True)
class DefragConfig:
    """What keeps a request's slots together. Every default is SGLang's own behaviour."""

    sort: bool = False  # free lists are sorted before they are used again
    evict: float = 0.0  # share of what may be evicted that goes at once; 0: the shortage alone
    extent: int = 0  # tokens: a request's decode reserve grows to multiples of it; 0: as needed
    best_fit: bool = False  # pages from kdt_pool instead of SGLang's list

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
        )


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
