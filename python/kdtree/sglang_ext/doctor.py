"""python -m kdtree.sglang_ext doctor: what of the plugin would act in a server started from here.

Exit code 0: everything that the environment asks for would act. 1: something would not; the line
says why. 2: wrong usage. 3: SGLang is not installed, or cannot be imported.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points

from kdtree.kernels import KernelError
from kdtree.kernels import version as version_of_kernels
from kdtree.sglang_ext import contract, defrag_sort, hooks, parts, verify
from kdtree.sglang_ext.config import ConfigError, DefragConfig, mask_check

GROUP = "sglang.srt.plugins"
ENTRY = "kdtree"

OK, REFUSED, USAGE, NO_SGLANG = 0, 1, 2, 3


def main(arguments: list[str]) -> int:
    if arguments != ["doctor"]:
        print("usage: python -m kdtree.sglang_ext doctor", file=sys.stderr)
        return USAGE
    version = contract.installed_version()
    print(f"SGLang     {version or 'is not installed in this environment'}")
    if version is None:
        return NO_SGLANG
    wrong = [*_loading(), *_switches(version), *_backend(version)]
    for line in wrong:
        print(f"PROBLEM    {line}")
    return REFUSED if wrong else OK


def _loading() -> list[str]:
    """Why SGLang would not call register()."""
    wrong = []
    ours = [entry for entry in entry_points(group=GROUP) if entry.name == ENTRY]
    print(f"plugin     {ours[0].value if ours else 'not found'} (entry point group {GROUP})")
    if not ours:
        wrong.append("the package is on the path but not installed, so SGLang does not find it: "
                     "pip install it")
    chosen = os.environ.get("SGLANG_PLUGINS", "")
    if chosen and ENTRY not in [name.strip() for name in chosen.split(",")]:
        wrong.append(f"SGLANG_PLUGINS={chosen} leaves {ENTRY} out")
    return wrong


def _switches(version: str) -> list[str]:
    """Prints a line for each switch; returns why what is on cannot act."""
    try:
        config = DefragConfig.from_env()
    except ConfigError as error:
        return [str(error)]
    lines, wrong = [], []
    for part in parts.PARTS:
        asked = part.asked(config)
        problem = contract.version_problem(version, part.since)
        problems = [problem] if problem else contract.problems(part.contract, version)
        if problems:
            state = "cannot act"
        else:
            state = "on" if asked else "off; would act"
        lines.append(f"{part.switch:<24} {state}")
        if asked:
            wrong += [f"{part.switch}: {each}" for each in problems]
        else:
            lines += [f"{'':<24}   {each}" for each in problems]
    tested = "tested" if version in contract.TESTED else "between tested versions"
    rows = len(parts.all_rows())
    print(f"contract   {rows} attributes of SGLang looked at; this version is {tested}")
    print("\n".join(lines))
    if not wrong and config.any():
        wrong += _try(config)
    return wrong


def _backend(version: str) -> list[str]:
    """Prints a line for the attention backend, which a server's command asks for; returns what is
    wrong with its variable."""
    problem = contract.version_problem(version)
    problems = [problem] if problem else contract.problems(verify.CONTRACT, version)
    try:
        kernels = f"kernels {version_of_kernels()}"
    except KernelError as error:
        reason = str(error).partition(". ")[0]
        kernels = f"but on a GPU SGLang's own kernel serves: {reason}"
    print(f"{verify.NAME:<24} {'cannot act' if problems else 'would act; ' + kernels}")
    for each in problems:
        print(f"{'':<24}   {each}")
    try:
        mask_check()
    except ConfigError as error:
        return [str(error)]
    return []


def _try(config: DefragConfig) -> list[str]:
    """Registers and applies the hooks here, as a scheduler process would."""
    try:
        parts.install(config)
        hooks.apply_hooks()
        if config.sort:
            defrag_sort.prove()
    except (KernelError, RuntimeError) as error:
        return [str(error)]
    print("proof      the hooks were applied in this process"
          + (", and a small allocator sorts" if config.sort else ""))
    return []
