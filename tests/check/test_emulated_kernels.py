"""The native libraries on emulated CPUs: by qemu without AVX-512 and AVX, by Bochs with AVX-512."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.backends.cpu.native.build import (
    SOURCES,
    build_library,
    build_self_test,
    find_compiler,
)
from tokenmill.backends.cpu.native.instruction_sets import supported_sets
from tokenmill.backends.machine.compiling import run_compiler
from tokenmill.core.interfaces import no_progress

from .emulation import (
    ICE_LAKE,
    RUN_SECONDS,
    SAPPHIRE_RAPIDS,
    SKYLAKE_X,
    WITHOUT_AVX,
    WITHOUT_AVX512,
    Emulator,
    bochs,
    x86,
)

pytestmark = [
    pytest.mark.depends_on(
        "src/backends/cpu/csrc", "tests/check/avx_vnni.cpp", "tests/check/bochs"
    ),
    pytest.mark.timeout(RUN_SECONDS + 100),
]

AVX_VNNI = Path(__file__).parent / "avx_vnni.cpp"
AVX512_PROGRAM = 'int main() { asm volatile("vpxorq %zmm0, %zmm0, %zmm0"); }\n'
AVX_PROGRAM = 'int main() { asm volatile("vxorps %ymm0, %ymm0, %ymm0"); }\n'
BF16_PROGRAM = 'int main() { asm volatile("vdpbf16ps %zmm0, %zmm0, %zmm0"); }\n'
VNNI_PROGRAM = 'int main() { asm volatile("vpdpbusd %zmm0, %zmm0, %zmm0"); }\n'
BOCHS_SETS = {
    SAPPHIRE_RAPIDS: "avx512bf16,avx512vnni,avx512,avxvnni,avx2,portable",
    ICE_LAKE: "avx512vnni,avx512,avx2,portable",
    SKYLAKE_X: "avx512,avx2,portable",
}
NOT_IN_BOCHS = ["sums over ranks", "threads"]
"""Checks that need several processes or threads."""


@pytest.mark.parametrize(
    ("cpu", "sets"), [(WITHOUT_AVX512, "avx2,portable"), (WITHOUT_AVX, "portable")]
)
def test_an_emulated_cpu_says_what_it_lacks(cpu: str, sets: str) -> None:
    done = x86(cpu).run(build_self_test(no_progress), "--sets")
    assert (done.stdout.strip(), done.returncode) == (sets, 0)


@pytest.mark.parametrize(("model", "sets"), BOCHS_SETS.items())
def test_a_model_of_bochs_says_what_it_has(model: str, sets: str) -> None:
    done = bochs(model).run(build_self_test(no_progress), "--sets")
    assert (done.stdout.strip(), done.returncode) == (sets, 0)


@pytest.mark.parametrize(
    ("make", "cpu", "program"),
    [
        (x86, WITHOUT_AVX512, AVX512_PROGRAM),
        (x86, WITHOUT_AVX, AVX_PROGRAM),
        (bochs, ICE_LAKE, BF16_PROGRAM),
        (bochs, SKYLAKE_X, VNNI_PROGRAM),
    ],
)
def test_an_emulated_cpu_runs_nothing_that_it_lacks(
    make: Callable[[str], Emulator], cpu: str, program: str, tmp_path: Path
) -> None:
    """Else the tests below would show nothing."""
    emulator = make(cpu)
    (tmp_path / "program.cpp").write_text(program)
    made = tmp_path / "program"
    run_compiler([find_compiler(), "-o", str(made), str(tmp_path / "program.cpp")], "any")
    assert "Illegal instruction" in emulator.run(made).stderr


@pytest.mark.parametrize(
    ("cpu", "instruction_set"),
    [
        (WITHOUT_AVX512, "avx2"),
        (WITHOUT_AVX, "portable"),
        # the same code as on the older CPU
        pytest.param(WITHOUT_AVX512, "portable", marks=pytest.mark.soak),
    ],
)
def test_a_library_passes_its_self_test_on_an_older_x86(cpu: str, instruction_set: str) -> None:
    emulator = x86(cpu)
    library = build_library(instruction_set, no_progress)
    done = emulator.run(build_self_test(no_progress), library)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("model", BOCHS_SETS)
def test_a_library_passes_its_self_test_on_the_oldest_model_that_has_its_set(model: str) -> None:
    library = build_library(BOCHS_SETS[model].partition(",")[0], no_progress)
    done = bochs(model).run(build_self_test(no_progress), library)
    failed = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert (failed, done.stderr) == (NOT_IN_BOCHS, ""), done.stdout


@pytest.mark.parametrize(
    ("cpu", "instruction_set"), [(WITHOUT_AVX512, "avx512"), (WITHOUT_AVX, "avx2")]
)
def test_a_library_for_a_newer_cpu_is_refused_before_its_code_runs(
    cpu: str, instruction_set: str
) -> None:
    emulator = x86(cpu)
    library = build_library(instruction_set, no_progress)
    done = emulator.run(build_self_test(no_progress), library)
    assert f"this CPU does not run {instruction_set}" in done.stdout
    assert done.returncode == 1


def test_the_avxvnni_library_passes_its_self_test(tmp_path: Path) -> None:
    """qemu has no AVX-VNNI, Bochs takes minutes: where the CPU lacks it, a handler computes it."""
    if "avx2" not in supported_sets():
        pytest.skip("this CPU does not run avx2")
    program = tmp_path / "self_test"
    folders = (SOURCES / "self_test", SOURCES / "formats")
    sources = [*(path for folder in folders for path in folder.glob("*.cpp")), AVX_VNNI]
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-pthread", f"-I{SOURCES}", "-w"]
    made = ["-o", str(program), *map(str, sources), "-ldl"]
    run_compiler([find_compiler(), *flags, *made], "any")
    library = build_library("avxvnni", no_progress)
    done = subprocess.run([program, library], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
    emulated = int(done.stderr.split()[1])
    assert (emulated == 0) is ("avxvnni" in supported_sets())
