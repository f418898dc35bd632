"""Which instructions the native libraries hold, read from their machine code."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from tokenmill.backends.cpu.native.build import build_library, build_probe, build_self_test
from tokenmill.core.interfaces import no_progress

from .parts import need

pytestmark = [
    pytest.mark.depends_on("src/backends/cpu/csrc"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 machine code"),
]

AVX_MNEMONIC = re.compile(r"\tv(?!err|erw)[a-z0-9]+ ")
"""AVX and its successors start with v; `verr` and `verw` are from 1982."""
OF_AVX512 = re.compile(r"%(zmm|[xy]mm(1[6-9]|2\d|3[01])|k[0-7])\b")
"""The registers that came with AVX-512."""


def disassemble(path: Path) -> str:
    command = [need("objdump", "binutils"), "-d", "--no-show-raw-insn", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def library(instruction_set: str) -> Path:
    return build_library(instruction_set, no_progress)


@pytest.mark.parametrize("name", ["library", "probe", "self-test"])
def test_what_runs_on_any_x86_64_holds_no_avx_instruction(name: str) -> None:
    path = {
        "library": lambda: library("portable"),
        "probe": build_probe,
        "self-test": lambda: build_self_test(no_progress),
    }[name]()
    code = disassemble(path)
    assert "%xmm" in code or name == "probe", "the code was read"
    assert not re.findall("%[yz]mm", code)
    assert not AVX_MNEMONIC.findall(code)


@pytest.mark.parametrize("instruction_set", ["avx2", "avxvnni"])
def test_a_library_without_avx512_uses_registers_of_256_bits_and_nothing_newer(
    instruction_set: str,
) -> None:
    code = disassemble(library(instruction_set))
    assert "%ymm" in code and AVX_MNEMONIC.search(code)
    assert not OF_AVX512.search(code)


@pytest.mark.parametrize(
    ("instruction_set", "products"),
    [
        ("avx512vnni", "vpdpbusd .*%zmm"),
        ("avx512", ""),
        ("avxvnni", "{vex} vpdpbusd"),
        ("avx2", ""),
    ],
)
def test_products_of_bytes_are_only_where_they_belong(instruction_set: str, products: str) -> None:
    lines = [line for line in disassemble(library(instruction_set)).splitlines() if "dpbus" in line]
    assert bool(lines) is bool(products)
    assert all(re.search(products, line) for line in lines)


@pytest.mark.parametrize("instruction_set", ["avx512", "avx512bf16"])
def test_bfloat16_products_are_only_where_they_belong(instruction_set: str) -> None:
    code = disassemble(library(instruction_set))
    assert "%zmm" in code
    assert ("vdpbf16ps" in code) is (instruction_set == "avx512bf16")
