"""Which of the native libraries this CPU runs: there is one per instruction set."""

from __future__ import annotations

import ctypes
import functools
import os

from ...core.errors import ConfigError
from .build import INSTRUCTION_SETS, build_probe, is_x86

VARIABLE = "TOKENMILL_CPU_ISA"


def supported_sets() -> tuple[str, ...]:
    """Those that this CPU and its operating system run, best first; the last is "portable".

    Raises BuildError where a CPU must be asked and there is no compiler.
    """
    return _ask_cpu()[0]


def choose_sets() -> tuple[str, ...]:
    """The set to compute with, then those to turn to if its library fails the self-test.

    The best that this CPU runs, or the one that TOKENMILL_CPU_ISA names. Raises ConfigError if that
    is unknown or this CPU lacks it, BuildError as `supported_sets`.
    """
    supported, named = supported_sets(), os.environ.get(VARIABLE)
    if not named:
        return supported
    if named not in INSTRUCTION_SETS:
        raise ConfigError(f"{VARIABLE} must be one of {', '.join(supported)}, got {named!r}")
    if named not in supported:
        raise ConfigError(
            f"{VARIABLE} is {named!r}, which this CPU does not run: it runs {', '.join(supported)}"
        )
    return supported[supported.index(named) :]


def cpu_identity() -> str:
    """The CPU's model and features, for telling CPUs apart; empty where there is one set only."""
    return _ask_cpu()[1]


@functools.cache
def _ask_cpu() -> tuple[tuple[str, ...], str]:
    if not is_x86():
        return ("portable",), ""
    probe = ctypes.CDLL(str(build_probe()))
    probe.tm_supported_sets.restype = probe.tm_cpu_identity.restype = ctypes.c_char_p
    return tuple(probe.tm_supported_sets().decode().split(",")), probe.tm_cpu_identity().decode()
