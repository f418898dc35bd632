"""A library is tested once per CPU, in a process that may die."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tokenmill.backends.cpu.native import self_test
from tokenmill.backends.cpu.native.build import (
    SOURCES,
    build_library,
    build_self_test,
    find_compiler,
)
from tokenmill.backends.cpu.native.self_test import failure_of
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.interfaces import Progress, no_progress


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where nothing is remembered yet."""
    monkeypatch.delenv(self_test.VARIABLE, raising=False)
    monkeypatch.setattr(self_test, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(self_test, "cpu_identity", lambda: "some CPU")
    return tmp_path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(b"kernels")
    return path


def use_program(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Let the self-test be a shell script; it notes each of its runs."""
    program, runs = folder / "program", folder / "runs"
    program.write_text(f"#!/bin/sh\necho run >> {runs}\n{script}\n")
    program.chmod(0o755)
    runs.touch()
    monkeypatch.setattr(self_test, "build_self_test", lambda progress: program)
    return runs


def num_runs(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def test_every_library_passes_on_a_cpu_that_runs_it(instruction_set: str) -> None:
    """What passed here before, to the last byte, is not tested again: that takes two seconds."""
    build_self_test(no_progress)  # else its absence would be no failure
    assert failure_of(build_library(instruction_set, no_progress), no_progress) is None


def test_what_passed_is_not_tested_again_until_the_library_or_the_cpu_changes(
    cache: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = use_program(monkeypatch, cache, "exit 0")
    assert failure_of(library, no_progress) is None
    assert failure_of(library, no_progress) is None
    assert num_runs(runs) == 1
    library.write_bytes(b"other kernels")
    assert failure_of(library, no_progress) is None
    assert num_runs(runs) == 2
    monkeypatch.setattr(self_test, "cpu_identity", lambda: "another CPU")
    assert failure_of(library, no_progress) is None
    assert num_runs(runs) == 3


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'attention: out[0, 3] is 1, expected 2'; exit 1", "out[0, 3] is 1, expected 2"),
        ("echo 'version GLIBC_2.99 not found' >&2; exit 1", "version GLIBC_2.99 not found"),
        ("kill -ILL $$", "the self-test died of SIGILL"),
        ("exit 3", "ended with status 3"),
        ("sleep 60", "did not end within 1 seconds"),
    ],
)
def test_a_difference_a_crash_or_a_time_out_is_found_at_every_start(
    cache: Path, library: Path, script: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_TIMEOUT_S", 1.0 if "sleep" in script else 60.0)
    runs = use_program(monkeypatch, cache, f"exec {script}" if "sleep" in script else script)
    for _ in range(2):
        assert found in str(failure_of(library, no_progress))
    assert num_runs(runs) == 2


def test_the_environment_switches_it_off(
    cache: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = use_program(monkeypatch, cache, "exit 1")
    monkeypatch.setenv(self_test.VARIABLE, "0")
    assert failure_of(library, no_progress) is None
    assert num_runs(runs) == 0


def test_a_test_that_cannot_be_had_is_logged_and_nothing_against_the_library(
    cache: Path, library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(progress: Progress) -> Path:
        raise BuildError("no C++ compiler was found")

    monkeypatch.setattr(self_test, "build_self_test", fail)
    assert failure_of(library, no_progress) is None
    assert "cpu_self_test_not_run" in caplog.text


def test_a_library_for_another_cpu_is_found(tmp_path: Path) -> None:
    """The program itself says so, before any of the library's code runs: here it would abort."""
    functions = re.findall(r'find\(handle, "(\w+)"', (SOURCES / "self_test/main.cpp").read_text())
    others = [name for name in functions if name != "tm_instruction_set"]
    assert len(others) == len(functions) - 1 > 0
    code = 'extern "C" const char* tm_instruction_set() { return "future"; }\n' + "".join(
        f'extern "C" void {name}() {{ __builtin_abort(); }}\n' for name in others
    )
    (tmp_path / "future.cpp").write_text(code)
    try:
        compiler, program = find_compiler(), build_self_test(no_progress)
    except BuildError as error:
        pytest.skip(str(error))
    library = tmp_path / "future.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "future.cpp")]
    subprocess.run(command, check=True)
    assert "this CPU does not run future" in str(self_test._run(program, library))
