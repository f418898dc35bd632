"""Which library fits this CPU, and what TOKENMILL_CPU_ISA changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.backends.cpu.native import instruction_sets
from tokenmill.backends.cpu.native.instruction_sets import choose_sets, supported_sets
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def avx2_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "supported_sets", lambda: ("avx2", "portable"))
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)


def test_portable_kernels_run_everywhere_and_come_last() -> None:
    assert supported_sets()[-1] == "portable"


@pytest.mark.usefixtures("avx2_only")
def test_the_best_set_is_chosen() -> None:
    assert choose_sets() == ("avx2", "portable")


@pytest.mark.usefixtures("avx2_only")
def test_the_environment_names_another_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instruction_sets.VARIABLE, "portable")
    assert choose_sets() == ("portable",)


@pytest.mark.usefixtures("avx2_only")
def test_a_set_that_this_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx512")
    with pytest.raises(ConfigError, match=r"'avx512', which this CPU does not run.*avx2, portable"):
        choose_sets()


@pytest.mark.usefixtures("avx2_only")
def test_an_unknown_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instruction_sets.VARIABLE, "mmx")
    with pytest.raises(ConfigError, match="must be one of avx2, portable, got 'mmx'"):
        choose_sets()


def test_a_probe_that_cannot_be_loaded_is_a_failed_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a file system that is mounted noexec."""
    (tmp_path / "probe.so").touch()
    monkeypatch.setattr(instruction_sets, "build_probe", lambda: tmp_path / "probe.so")
    instruction_sets._ask_cpu.cache_clear()
    with pytest.raises(BuildError, match=r"probe\.so cannot be loaded"):
        supported_sets()
