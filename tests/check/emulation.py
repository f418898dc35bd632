"""CPUs that this machine may not have, by qemu's emulation of one program."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from .parts import need

RUN_SECONDS = 3500.0
"""An emulated program takes minutes, and an hour on a busy machine."""
WITHOUT_AVX512 = "max"
"""All that qemu emulates of x86-64, which is AVX2 and no AVX-512."""
WITHOUT_AVX = "Nehalem"
NEWEST_ARM = "max"
ARM_WITH_DOTPROD = "cortex-a76"
"""ARMv8.2 with dot products, and without the instructions that came later."""
OLDEST_ARM = "cortex-a57"
CROSS_LIBRARIES = Path("/usr/aarch64-linux-gnu")
"""Where Debian's cross compiler has the libraries of its programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """Runs programs as another CPU; the processes that they start run on this one."""

    command: tuple[str, ...]

    def run(
        self,
        *program: str | Path,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = RUN_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *map(str, program)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )


def x86(cpu: str) -> Emulator:
    """One of the CPUs above. Skips on another architecture, or without qemu."""
    if platform.machine() != "x86_64":
        pytest.skip("programs for x86-64 are compiled on x86-64 only")
    return Emulator(command=(need("qemu-x86_64", "qemu-user"), "-cpu", cpu))


def aarch64(cpu: str, root: Path = CROSS_LIBRARIES) -> Emulator:
    """One of the ARM CPUs above; `root` has its libraries. Skips without a cross compiler."""
    need("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    return Emulator(command=(need("qemu-aarch64", "qemu-user"), "-cpu", cpu, "-L", str(root)))
