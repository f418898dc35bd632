"""Finds the instruction sets that this CPU runs, and chooses the one to compute with."""

from __future__ import annotations

import ctypes
import functools
import os

from ....core.errors import ConfigError
from ...machine.compiling import open_library
from .architectures import architecture_of
from .build import build_probe

VARIABLE = "TOKENMILL_CPU_ISA"


def supported_sets() -> tuple[str, ...]:
    """Instruction sets that this CPU and its operating system run, best first.

    The last one is "portable". Raises BuildError if the probe library cannot be built or loaded.
    """
    return _ask_cpu()[0]


def choose_sets() -> tuple[str, ...]:
    """Instruction sets to try, in this order, until a library passes its self-test.

    The first is the best set that this CPU runs, or the one that TOKENMILL_CPU_ISA names. Raises
    ConfigError if that set is unknown or this CPU does not run it, BuildError as `supported_sets`.
    """
    supported, named = supported_sets(), os.environ.get(VARIABLE)
    if not named:
        return supported
    if named not in architecture_of().sets:
        raise ConfigError(f"{VARIABLE} must be one of {', '.join(supported)}, got {named!r}")
    if named not in supported:
        raise ConfigError(
            f"{VARIABLE} is {named!r}, which this CPU does not run; use {', '.join(supported)}"
        )
    return supported[supported.index(named) :]


def cpu_identity() -> str:
    """Text that identifies the CPU's model and features; empty except on x86-64 and ARM."""
    return _ask_cpu()[1]


@functools.cache
def _ask_cpu() -> tuple[tuple[str, ...], str]:
    probe = open_library(build_probe())
    probe.tm_supported_sets.restype = probe.tm_cpu_identity.restype = ctypes.c_char_p
    return tuple(probe.tm_supported_sets().decode().split(",")), probe.tm_cpu_identity().decode()
