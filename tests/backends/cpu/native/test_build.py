"""The build of the native library: cached, one at a time, and clear about why it cannot be."""

from __future__ import annotations

import ctypes
import shutil
import threading
from pathlib import Path

import pytest

from tokenmill.backends.cpu.native import build
from tokenmill.backends.cpu.native.build import find_compiler
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.interfaces import Progress

SOURCE = 'extern "C" __attribute__((visibility("default"))) int tm_answer() {{ return {}; }}\n'
OLD_COMPILER = """#!/bin/sh
case " $* " in *" {option} "*)
    echo "g++: error: unrecognized command line option '{option}'" >&2
    exit 1
esac
exec {compiler} "$@"
"""
STAGE = "compiling CPU kernels for portable"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one line, and a cache of its own."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("there is no C++ compiler")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "csrc" / "answers"
    folder.mkdir(parents=True)
    (folder / "answer.cpp").write_text(SOURCE.format(42))
    (folder.parent / "exports.map").write_text("{ global: tm_*; local: *; };")
    monkeypatch.setattr(build, "SOURCES", folder.parent)
    return folder


def build_library(progress: Progress) -> Path:
    return build.build_library("portable", progress)


class Watcher:
    """Counts builds."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def __call__(self, stage: str, part: float) -> None:
        self.calls.append((stage, part))

    @property
    def num_builds(self) -> int:
        return sum(part == 0.0 for _, part in self.calls)


def test_a_library_is_built_once_and_again_when_a_source_changes(sources: Path) -> None:
    watcher = Watcher()
    first = build_library(watcher)
    assert ctypes.CDLL(str(first)).tm_answer() == 42
    assert watcher.calls[0] == (STAGE, 0.0)
    assert watcher.calls[-1] == (STAGE, 1.0)
    assert build_library(watcher) == first
    assert watcher.num_builds == 1
    (sources / "answer.cpp").write_text(SOURCE.format(43))
    second = build_library(watcher)
    assert ctypes.CDLL(str(second)).tm_answer() == 43
    assert watcher.num_builds == 2
    assert first.exists()


def test_flags_are_part_of_the_cache_s_key(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_library(Watcher())
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-O1"))
    assert build_library(Watcher()) != first


def test_builds_at_the_same_time_wait_for_the_first(sources: Path) -> None:
    watchers = [Watcher() for _ in range(4)]
    built: list[Path] = []
    threads = [
        threading.Thread(target=lambda watcher=watcher: built.append(build_library(watcher)))
        for watcher in watchers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 4 and len(set(built)) == 1
    assert sum(watcher.num_builds for watcher in watchers) == 1


def test_nothing_but_the_library_and_its_lock_stays_in_the_cache(sources: Path) -> None:
    made = build_library(Watcher())
    assert {path.suffix for path in made.parent.iterdir()} == {".so", ".lock"}


def test_the_compiler_s_first_error_is_told(sources: Path) -> None:
    (sources / "answer.cpp").write_text("int answer() { return unknown; }\n")
    with pytest.raises(BuildError, match=r"failed .*answer.cpp:1.*unknown"):
        build_library(Watcher())


def test_a_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler was found: install g\+\+ or clang"):
        build_library(Watcher())


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "mycc"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", str(mine))
    assert find_compiler() == str(mine)
    monkeypatch.setenv("CXX", "missing-cc")
    with pytest.raises(BuildError, match="CXX names, 'missing-cc', was not found"):
        find_compiler()


def test_a_cache_that_cannot_be_written_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match=r"cannot be written: .*set XDG_CACHE_HOME"):
        build_library(Watcher())


def test_a_prebuilt_library_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prebuilt = tmp_path / "libtokenmill_cpu_portable.so"
    prebuilt.write_bytes(b"")
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert build_library(Watcher()) == prebuilt


@pytest.mark.parametrize(
    ("machine", "instruction_set", "option", "needed"),
    [
        ("x86_64", "avxvnni", "-mavxvnni", "g++ 11 or clang++ 12"),
        ("aarch64", "i8mm", "-march=armv8.2-a+dotprod+i8mm", "g++ 10 or clang++ 11"),
        ("aarch64", "dotprod", "-march=armv8.2-a+dotprod", "g++ 10 or clang++ 9"),
    ],
)
def test_a_compiler_that_is_too_old_for_a_set_is_told(
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    machine: str,
    instruction_set: str,
    option: str,
    needed: str,
) -> None:
    """The next lower set is then built, see test_library.py."""
    old = tmp_path / "old-g++"
    old.write_text(OLD_COMPILER.format(compiler=find_compiler(), option=option))
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(BuildError) as error:
        build.build_library(instruction_set, Watcher())
    assert f"need at least {needed}): " in str(error.value)
    assert f"unrecognized command line option '{option}'" in str(error.value)
