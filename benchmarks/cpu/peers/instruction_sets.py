"""Names the instruction set that figures were measured with, and how it ran."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "TOKENMILL_CPU_ISA"
_BASE = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
_AVX512 = (*_BASE, "AVX512")
LLAMA_CPP_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "avx512bf16": (*_AVX512, "AVX512_BF16"),
    "avx512": _AVX512,
    "avxvnni": (*_BASE, "AVX_VNNI"),
    "avx2": _BASE,
    "portable": (),
}
"""GGML_ options that give llama.cpp the instructions of each of tokenmill's sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSet:
    """The instruction set of tokenmill's kernels in a measurement."""

    name: str
    run: str
    """"native" (the best set of this CPU), "TOKENMILL_CPU_ISA" (a set chosen by that variable) or
    "emulated" (on a CPU that a program emulates)."""

    @property
    def label(self) -> str:
        return f"{self.name}, {'under ' if self.run == VARIABLE else ''}{self.run}"


def in_use(*, is_emulated: bool) -> InstructionSet:
    """The set of this process. Only the user knows whether the CPU is emulated."""
    from tokenmill.backends.cpu.native.instruction_sets import choose_sets, supported_sets

    name = choose_sets()[0]
    if is_emulated:
        return InstructionSet(name=name, run="emulated")
    return InstructionSet(name=name, run="native" if name == supported_sets()[0] else VARIABLE)


def note(measured: InstructionSet) -> str:
    """A note on the instruction set, for readers of the figures."""
    others = ", ".join(name for name in LLAMA_CPP_OPTIONS if name != measured.name)
    text = (
        f"Instruction set of tokenmill: {measured.label}. Other sets ({others}) were only compiled."
    )
    same = "" if measured.run == "native" else " llama.cpp is built for the same set."
    return text + same


def llama_cpp_folder(name: str | None) -> str:
    """The folder where make_peers.py builds llama.cpp for a set; None for this CPU."""
    return "llama.cpp" if name is None else f"llama.cpp-{name}"


def llama_cpp_flags(name: str | None) -> list[str]:
    """CMake settings for a set; None for this CPU."""
    if name is None:
        return ["GGML_NATIVE=ON"]
    given = LLAMA_CPP_OPTIONS[name]
    options = dict.fromkeys(one for all in LLAMA_CPP_OPTIONS.values() for one in all)
    return [
        "GGML_NATIVE=OFF",
        *(f"GGML_{option}={'ON' if option in given else 'OFF'}" for option in options),
    ]


def named_set() -> str | None:
    """The set in TOKENMILL_CPU_ISA, for which llama.cpp must be built, too. None if not set."""
    return os.environ.get(VARIABLE) or None
