"""Which instruction set figures were measured with, and which peers are comparable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from engines import engines
from instruction_sets import InstructionSet, in_use, llama_cpp_flags
from report import Measurement, markdown

from tokenmill.backends.cpu.native import instruction_sets


@pytest.fixture
def avx2_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "_ask_cpu", lambda: (("avx2", "portable"), ""))
    monkeypatch.delenv("TOKENMILL_CPU_ISA", raising=False)


@pytest.mark.usefixtures("avx2_cpu")
def test_figures_are_marked_with_how_their_set_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_use(is_emulated=False).label == "avx2, native"
    assert in_use(is_emulated=True).label == "avx2, emulated"
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "portable")
    assert in_use(is_emulated=False).label == "portable, under TOKENMILL_CPU_ISA"


def test_the_table_says_which_set_was_measured_and_which_were_only_compiled() -> None:
    one = Measurement(
        engine="tokenmill",
        precision="bf16",
        workload="single",
        figures={"tokens_per_second": 1.0},
        seconds=1.0,
        foreign_share=0.0,
    )
    table = markdown([one], InstructionSet(name="avx2", run="TOKENMILL_CPU_ISA"))
    assert "Instruction set of tokenmill: avx2, under TOKENMILL_CPU_ISA." in table
    assert "Other sets (avx512bf16, avx512, avxvnni, portable) were only compiled." in table
    assert "llama.cpp is built for the same set." in table


def test_llama_cpp_is_built_for_the_set_that_is_compared(tmp_path: Path) -> None:
    assert llama_cpp_flags(None) == ["GGML_NATIVE=ON"]
    flags = llama_cpp_flags("avx2")
    assert {"GGML_NATIVE=OFF", "GGML_AVX2=ON", "GGML_FMA=ON", "GGML_AVX512=OFF"} <= set(flags)
    assert "GGML_AVX_VNNI=OFF" in flags and "GGML_AVX_VNNI=ON" in llama_cpp_flags("avxvnni")
    assert not [flag for flag in llama_cpp_flags("portable") if flag.endswith("=ON")]
    found = {one.name: one for one in engines(tmp_path, Path(sys.executable), "avx2")}
    assert found["llama.cpp"].needs == (tmp_path / "llama.cpp-avx2" / "bin" / "llama-server",)
