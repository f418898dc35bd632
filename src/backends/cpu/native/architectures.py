"""The instruction sets of each architecture that native libraries are built for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

OLDEST_COMPILERS = "g++ 10 or clang++ 9"
"""The oldest compilers that build the portable kernels."""
PORTABLE = "portable"
"""The set that every CPU of an architecture runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSet:
    """The compiler's options for an instruction set."""

    flags: tuple[str, ...] = ()
    compilers: str = OLDEST_COMPILERS
    """The oldest compilers that know the flags, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The instruction sets of an architecture."""

    sets: Mapping[str, InstructionSet]
    """Sets by name, best first. The last one is PORTABLE."""
    flags: tuple[str, ...] = ()
    """Compiler flags of everything that is built. They name the oldest CPU, because compilers of
    some systems assume a newer one."""


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
_X86 = Architecture(
    flags=("-march=x86-64",),
    sets={
        # Every CPU with BF16 has VNNI: Cooper Lake, Sapphire Rapids, Zen 4 and their successors.
        "avx512bf16": InstructionSet(flags=(*_AVX512, "-mavx512vnni", "-mavx512bf16")),
        "avx512vnni": InstructionSet(flags=(*_AVX512, "-mavx512vnni")),
        "avx512": InstructionSet(flags=_AVX512),
        "avxvnni": InstructionSet(flags=(*_AVX2, "-mavxvnni"), compilers="g++ 11 or clang++ 12"),
        "avx2": InstructionSet(flags=_AVX2),
        PORTABLE: InstructionSet(),
    },
)
_ARM = Architecture(
    # By default g++ moves loads upwards on ARM, until tiles have more values than registers: one of
    # bfloat16 then has 1201 instructions instead of 764. g++ 12 crashes when it vectorizes sums of
    # the inputs; the kernels state their vectors themselves.
    flags=("-march=armv8-a", "-fno-schedule-insns", "-fno-tree-vectorize"),
    sets={
        # Every CPU with i8mm has dot products: ARMv8.6, Neoverse V1 and N2, Apple M2.
        "i8mm": InstructionSet(
            flags=("-march=armv8.2-a+dotprod+i8mm",), compilers="g++ 10 or clang++ 11"
        ),
        # Cortex-A76, Neoverse N1, Apple M1 and their successors.
        "dotprod": InstructionSet(flags=("-march=armv8.2-a+dotprod",)),
        PORTABLE: InstructionSet(),
    },
)
_OTHER = Architecture(sets={PORTABLE: InstructionSet()})
_ARCHITECTURES = {
    "x86_64": _X86,
    "AMD64": _X86,
    "aarch64": _ARM,
    "arm64": _ARM,
}
"""Architectures by the names that operating systems give them."""


def architecture_of(machine: str | None = None) -> Architecture:
    """The architecture with this name (as `platform.machine`); by default this machine's."""
    return _ARCHITECTURES.get(machine or platform.machine(), _OTHER)
