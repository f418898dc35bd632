"""The CPU: its instruction sets, the kernels for them, and the cores that this process gets."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..backends.cpu.native import instruction_sets
from ..backends.cpu.native.build import PREBUILT, find_compiler
from ..backends.machine.compiling import BuildError
from ..backends.machine.threads import (
    affinity,
    count_usable_cores,
    count_usable_cpus,
    place_threads,
)
from ..core.errors import ConfigError
from .finding import Finding, note, ok, problem, warning

_CPU_INFO = Path("/proc/cpuinfo")
_WITHOUT_KERNELS = "torch computes instead: products with 4-bit weights are several times slower"
_BUSY = 0.5
"""Load per CPU from which other programs take a notable part of the time."""


def examine_processor() -> Finding:
    """The CPU's model, and the instruction set that the kernels use."""
    model = _model_name()
    try:
        supported, chosen = instruction_sets.supported_sets(), instruction_sets.choose_sets()
    except ConfigError as error:
        return problem(
            "processor",
            f"{model}; {error}",
            cost="no server starts",
            advice=f"unset {instruction_sets.VARIABLE}",
        )
    except BuildError as error:
        return warning(
            "processor",
            f"{model}; its instruction sets are unknown: {error}",
            cost=_WITHOUT_KERNELS,
            advice="see the compiler and the cache below",
        )
    found = f"{model}; kernels for {chosen[0]} (it runs {', '.join(supported)})"
    if chosen[0] != supported[0]:
        return warning(
            "processor",
            found,
            cost=f"kernels for {supported[0]} are faster",
            advice=f"unset {instruction_sets.VARIABLE}",
        )
    if chosen[0] == "portable":
        return warning(
            "processor",
            found,
            cost="kernels for AVX2 or for dot products of ARM are several times faster",
            advice="use a CPU with AVX2, or let the virtual machine use these instructions",
        )
    return ok("processor", found)


def examine_compiler() -> Finding:
    """The kernels of the wheel, or the compiler that builds them."""
    if PREBUILT.is_dir():
        return ok("compiler", "not needed: this installation contains compiled kernels")
    try:
        return ok("compiler", f"{find_compiler()} builds the kernels at the first start")
    except BuildError as error:
        return warning(
            "compiler",
            str(error),
            cost=_WITHOUT_KERNELS,
            advice="install g++ (Debian, Ubuntu: apt-get install g++), or a wheel with kernels",
        )


def examine_threads() -> Finding:
    """The threads that compute, and other processes that use their cores."""
    placement = place_threads()
    cores, cpus = count_usable_cores(), os.cpu_count() or 1
    found = f"{placement.num_threads} of {cpus} CPUs compute, one thread per core"
    if placement.cpus is None and count_usable_cpus() < len(affinity()):
        return note(
            "threads",
            f"{found}; a container's quota limits this process to {cores} CPUs",
            cost="threads are not pinned to cores, so steps take unequal times",
            advice="give the container whole CPUs (docker: --cpuset-cpus)",
        )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _BUSY * count_usable_cpus():
        return note(
            "threads",
            f"{found}; the load is {load:.1f}",
            cost="other programs compute on the same cores, and each step waits for the slowest",
            advice="end them, or leave them other cores (taskset)",
        )
    return ok("threads", found)


def _model_name() -> str:
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
