"""The native libraries for 64-bit ARM, cross-compiled, on emulated CPUs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.backends.cpu.native.build import SOURCES, Toolchain, compile_product, products
from tokenmill.backends.machine.compiling import run_compiler
from tokenmill.core.interfaces import no_progress

from .emulation import ARM_WITH_DOTPROD, NEWEST_ARM, OLDEST_ARM, RUN_SECONDS, aarch64
from .parts import need

pytestmark = [
    pytest.mark.depends_on("src/backends/cpu/csrc"),
    pytest.mark.timeout(RUN_SECONDS + 100),
]

Built = Callable[[str], Path]

IDENTITY_PROGRAM = """
#include <cstdio>
#include "features/cpu_features.h"
int main() { std::puts(tokenmill::cpu_identity().c_str()); }
"""
CORES = "processor\t: {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A product for ARM, by its name."""
    compiler = need("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    toolchain = Toolchain(compiler=compiler, machine="aarch64")
    all_products = {product.name: product for product in products("aarch64")}
    folder = tmp_path_factory.mktemp("aarch64")

    def build(name: str) -> Path:
        made = folder / name
        if not made.exists():
            compile_product(all_products[name], toolchain, folder, "", no_progress)
        return made

    return build


def library(built: Built, instruction_set: str) -> Path:
    return built(f"libtokenmill_cpu_{instruction_set}.so")


@pytest.mark.parametrize(
    ("cpu", "sets"),
    [
        (NEWEST_ARM, "i8mm,dotprod,portable"),
        (ARM_WITH_DOTPROD, "dotprod,portable"),
        (OLDEST_ARM, "portable"),
    ],
)
def test_a_cpu_says_which_sets_it_runs(built: Built, cpu: str, sets: str) -> None:
    done = aarch64(cpu).run(built("tokenmill_cpu_self_test"), "--sets")
    assert (done.stdout.strip(), done.returncode) == (sets, 0)


@pytest.mark.parametrize(
    ("cpu", "instruction_set"),
    [(NEWEST_ARM, "i8mm"), (ARM_WITH_DOTPROD, "dotprod"), (OLDEST_ARM, "portable")],
)
def test_a_library_passes_its_self_test_on_the_oldest_cpu_that_has_its_set(
    built: Built, cpu: str, instruction_set: str
) -> None:
    program = built("tokenmill_cpu_self_test")
    done = aarch64(cpu).run(program, library(built, instruction_set))
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("cpu", "instruction_set"), [(ARM_WITH_DOTPROD, "i8mm"), (OLDEST_ARM, "dotprod")]
)
def test_a_library_for_a_newer_cpu_is_refused_before_its_code_runs(
    built: Built, cpu: str, instruction_set: str
) -> None:
    program = built("tokenmill_cpu_self_test")
    done = aarch64(cpu).run(program, library(built, instruction_set))
    assert f"this CPU does not run {instruction_set}" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("instruction_set", "found"),
    [("i8mm", {"sdot", "smmla"}), ("dotprod", {"sdot"}), ("portable", set[str]())],
)
def test_products_of_bytes_are_only_where_they_belong(
    built: Built, instruction_set: str, found: set[str]
) -> None:
    command = ["aarch64-linux-gnu-objdump", "-d", str(library(built, instruction_set))]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "fmla" in code, "the code was read"
    assert set(re.findall(r"\t([su]dot|[su]mmla|usmmla|bf\w+)\t.*v\d", code)) == found


def test_cpus_with_other_features_or_other_cores_are_told_apart(tmp_path: Path) -> None:
    """A library that passed its test on one must be tested on the other."""
    sources = [tmp_path / "identity.cpp", SOURCES / "features" / "cpu_features.cpp"]
    sources[0].write_text(IDENTITY_PROGRAM)
    compiler = need("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    program = tmp_path / "identity"
    flags = ["-std=c++17", "-static", f"-I{SOURCES}", "-o", str(program)]
    run_compiler([compiler, *flags, *map(str, sources)], "any")

    def identity(cpu: str, *cores: str) -> str:
        root = tmp_path / "-".join(["root", *cores])
        (root / "proc").mkdir(parents=True, exist_ok=True)
        text = "".join(CORES.format(i, core) for i, core in enumerate(cores))
        (root / "proc" / "cpuinfo").write_text(text)
        return aarch64(cpu, root).run(program).stdout

    assert identity(OLDEST_ARM, "0xd03") != identity(ARM_WITH_DOTPROD, "0xd03")
    assert identity(OLDEST_ARM, "0xd03") != identity(OLDEST_ARM, "0xd03", "0xd07")
    assert identity(OLDEST_ARM, "0xd03", "0xd07") == identity(OLDEST_ARM, "0xd07", "0xd03")
