"""Which instruction sets are built for an architecture."""

from __future__ import annotations

import pytest

from tokenmill.backends.cpu.native.architectures import architecture_of
from tokenmill.backends.cpu.native.build import products


@pytest.mark.parametrize(
    ("machine", "best"),
    [
        ("x86_64", "avx512bf16"),
        ("aarch64", "i8mm"),
        ("arm64", "i8mm"),
        ("riscv64", "portable"),
    ],
)
def test_an_architecture_has_its_own_sets_and_portable_last(machine: str, best: str) -> None:
    sets = list(architecture_of(machine).sets)
    assert (sets[0], sets[-1]) == (best, "portable")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_a_wheel_has_a_library_for_each_set_of_its_architecture(machine: str) -> None:
    names = {product.name for product in products(machine)}
    libraries = {f"libtokenmill_cpu_{one}.so" for one in architecture_of(machine).sets}
    assert names == {*libraries, "libtokenmill_cpu_probe.so", "tokenmill_cpu_self_test"}
