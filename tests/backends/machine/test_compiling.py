"""Commands of a build, and files that are built once, on machines with less than usual."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from tokenmill.backends.machine import compiling
from tokenmill.backends.machine.compiling import (
    BUILD_BYTES,
    BuildError,
    CacheError,
    build_once,
    cache_folder,
    open_library,
    run_compiler,
    run_compilers,
)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tokenmill"


def make(folder: Path) -> Path:
    made = folder / "made"
    made.write_text("made")
    return made


def test_what_a_killed_build_left_is_removed_by_the_next_one(cache: Path) -> None:
    (cache / "library.build").mkdir(parents=True)
    (cache / "library.build" / "half.o").touch()
    assert build_once("library.so", make).read_text() == "made"
    assert {path.name for path in cache.iterdir()} == {"library.so", "library.lock"}


@pytest.mark.parametrize("damage", [b"", b"mad", b"MADE"])
def test_a_damaged_file_is_built_again(cache: Path, damage: bytes) -> None:
    target = build_once("library.so", make)
    target.write_bytes(damage)
    assert build_once("library.so", make).read_text() == "made"

    def fail(folder: Path) -> Path:
        raise AssertionError("an intact file is built again")

    assert build_once("library.so", fail) == target


@pytest.mark.parametrize("noted", [b"", b"\xed\x00"], ids=["cut off", "damaged"])
def test_a_file_whose_checksum_is_not_noted_is_built_again(cache: Path, noted: bytes) -> None:
    build_once("library.so", make)
    (cache / "library.lock").write_bytes(noted)
    assert build_once("library.so", make).read_text() == "made"


def test_nothing_is_compiled_on_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=BUILD_BYTES - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)

    def fail(folder: Path) -> Path:
        raise AssertionError("it is tried")

    with pytest.raises(CacheError, match="has 31 MB of free space; a build needs 32 MB"):
        build_once("library.so", fail)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_apart_from_an_old_compiler(number: int) -> None:
    code = f"echo error: final link failed: {os.strerror(number)} >&2; exit 1"
    with pytest.raises(CacheError, match=r"sh has no room for its result .*: free some space"):
        run_compiler(["sh", "-c", code], "any")


def test_a_cache_that_cannot_be_looked_into_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 300)))
    with pytest.raises(BuildError, match=r"File name too long.*set XDG_CACHE_HOME"):
        build_once("library.so", make)


def test_a_user_without_a_home_directory_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(BuildError, match=r"home directory.*Set XDG_CACHE_HOME"):
        cache_folder()


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.so").write_text("no library")
    with pytest.raises(BuildError, match=r"wrong\.so cannot be loaded"):
        open_library(tmp_path / "wrong.so")


def test_a_compiler_speaks_english_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    assert run_compiler(["sh", "-c", "echo $LC_ALL"], "any") == "C\n"


def test_output_that_is_not_utf_8_is_shown_as_far_as_it_is_text() -> None:
    code = r"import os, sys; os.write(2, b'error: \xff is wrong'); sys.exit(1)"
    with pytest.raises(BuildError, match="error: \ufffd is wrong"):
        run_compiler([sys.executable, "-c", code], "any")


def test_after_a_failure_no_other_command_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiling, "count_usable_cpus", lambda: 1)
    later = [["touch", str(tmp_path / str(index))] for index in range(200)]
    with pytest.raises(BuildError, match="false failed"):
        run_compilers([["false"], *later], "any", lambda done: None)
    assert len(list(tmp_path.iterdir())) < 200
