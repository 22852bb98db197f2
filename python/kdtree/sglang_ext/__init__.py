"""kdtree inside stock SGLang: a plugin of its entry point group `sglang.srt.plugins`.

    pip install kdtree           in the environment of SGLang
    KDTREE_DEFRAG_SORT=1 ...     the switches, see docs/sglang.md
    --attention-backend kdtree_verify
    python -m kdtree.sglang_ext doctor

SGLang calls register() in the launching process and first thing in every scheduler process. Without
a switch it only makes the attention backend kdtree_verify known. A switch that cannot act, because
SGLang's version is not supported or one of its functions looks different, ends the process with the
reason: SGLang itself would log it and serve without us.
"""

from __future__ import annotations

import logging
import sys

from kdtree.sglang_ext import contract, metrics, parts, report
from kdtree.sglang_ext.config import ConfigError, DefragConfig
from kdtree.sglang_ext.defrag_sort import install_defrag_sort
from kdtree.sglang_ext.verify import install_verify

__all__ = ["install_defrag_sort", "install_verify", "register"]

logger = logging.getLogger(__name__)


def register() -> None:
    """The entry point. SystemExit: a switch is on and cannot act."""
    try:
        config = DefragConfig.from_env()
    except ConfigError as error:
        _refuse([str(error)])
    install_verify()
    if not config.any():
        logger.info("kdtree: no switch is on")
        return
    version = contract.installed_version()
    # Allocators live in processes that have a scheduler. Elsewhere (command line, detokenizer) the
    # modules are not imported for our sake, and the version alone is checked.
    here = "sglang.srt.managers.scheduler" in sys.modules
    _refuse(parts.refusals(config, version, look_inside=here))
    if here:
        try:
            parts.install(config)
            report.install(config)
            metrics.install()
        except RuntimeError as error:  # another plugin's hook is in the way, no library
            _refuse([str(error)])
        logger.info("kdtree: hooks registered for SGLang %s: %s", version, config)


def _refuse(lines: list[str]) -> None:
    if not lines:
        return
    for line in lines:
        logger.error("kdtree: %s", line)
    # SGLang catches every Exception of a plugin; this one is none.
    raise SystemExit("kdtree refuses to start: " + "; ".join(lines) +
                     ". Unset the variable to go on without it.")
