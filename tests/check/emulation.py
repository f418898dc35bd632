"""CPUs that this machine may not have, by the emulation of one program in qemu or Bochs."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compiling import compile_once
from tokenmill.backends.cpu.native.build import find_compiler

from .clients.environments import python_with
from .parts import CACHE, need

RUN_SECONDS = 3500.0
"""An emulated program takes minutes, and an hour on a busy machine."""
WITHOUT_AVX512 = "max"
"""All that qemu emulates of x86-64, which is AVX2 and no AVX-512."""
WITHOUT_AVX = "Nehalem"
NEWEST_ARM = "max"
ARM_WITH_DOTPROD = "cortex-a76"
"""ARMv8.2 with dot products, and without the instructions that came later."""
OLDEST_ARM = "cortex-a57"
BOCHS = "bochscpu-python==0.4.0"
"""Bochs's CPU, which has AVX-512; qemu has not."""
BOCHS_FILES = Path(__file__).parent / "bochs"
SKYLAKE_X = "corei7_skylake_x"
"""AVX-512 without products of bytes."""
ICE_LAKE = "corei7_icelake_u"
"""AVX-512 with products of bytes, without bfloat16."""
SAPPHIRE_RAPIDS = "sapphire_rapids"
"""All of AVX-512."""
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
    _need_x86()
    return Emulator(command=(need("qemu-x86_64", "qemu-user"), "-cpu", cpu))


def bochs(model: str) -> Emulator:
    """One of Bochs's models of x86-64. A program has one thread, and starts no process.

    Skips on another architecture, and without a network if it is not installed.
    """
    _need_x86()
    python = python_with(BOCHS)
    [library] = python.parents[1].rglob("_bochscpu.*.so")
    command = [find_compiler(), "-O2", "-shared", "-fPIC", "-fno-builtin", "-w"]
    preloaded = compile_once(command, BOCHS_FILES / "model.cpp", [BOCHS_FILES], CACHE).path
    create = f"create_{model}_cpuid"
    variables = {
        "LD_PRELOAD": preloaded,
        "BOCHS_LIBRARY": library,
        "BOCHS_MODEL": f"_Z{len(create)}{create}P8BX_CPU_C",
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    return Emulator(command=("env", *settings, str(python), str(BOCHS_FILES / "program.py")))


def _need_x86() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("this CPU does not run programs for x86-64, which are compiled on it")


def aarch64(cpu: str, root: Path = CROSS_LIBRARIES) -> Emulator:
    """One of the ARM CPUs above; `root` has its libraries. Skips without a cross compiler."""
    need("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    return Emulator(command=(need("qemu-aarch64", "qemu-user"), "-cpu", cpu, "-L", str(root)))
