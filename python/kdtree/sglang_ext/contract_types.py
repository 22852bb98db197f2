"""How a module of the plugin states which attributes of SGLang it touches.

Each module has a table `CONTRACT: tuple[Touched, ...]`; contract.py compares all of them with the
SGLang that is installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Touched:
    """One attribute of SGLang that the plugin calls, replaces or reads.

    path        "sglang.srt.module:Class.attribute"; the module before the colon
    signatures  parameter names in order (self included) for each version, as "0.5.18"; "*" for all
                versions that are not named. An attribute that is no function has (), and a version
                where it is absent has no entry at all.
    """

    path: str
    signatures: dict[str, tuple[str, ...]] = field(hash=False)
