"""The cache of quantized models stays within its limit."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tokenmill.backends.weights.quantized_cache.folder import choose_limit, list_models, make_room

GIB = 1 << 30


def put(folder: Path, name: str, num_bytes: int, age: float) -> None:
    """Make a file that was used `age` seconds ago."""
    with (folder / name).open("wb") as file:
        file.truncate(num_bytes)
    os.utime(folder / name, (0, time.time() - age))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (400, {"old", "older", "new"}),
        (399, {"old", "new"}),
        (300, {"old", "new"}),
        (200, {"new"}),
        (100, set()),
    ],
)
def test_as_few_files_as_needed_are_removed_the_oldest_first(
    limit: int, kept: set[str], tmp_path: Path
) -> None:
    for name, age in (("old", 20), ("older", 30), ("new", 10)):
        put(tmp_path, f"{name}.safetensors", 100, age)
    assert make_room(tmp_path, 100, limit)
    assert names(tmp_path) == {f"{name}.safetensors" for name in kept}


def test_nothing_is_removed_for_what_cannot_fit(tmp_path: Path) -> None:
    put(tmp_path, "a.safetensors", 100, 10)
    assert not make_room(tmp_path, 201, 200)
    assert names(tmp_path) == {"a.safetensors"}


def test_a_file_that_is_being_made_counts_and_stays(tmp_path: Path) -> None:
    put(tmp_path, "b.1.making", 150, 20)
    put(tmp_path, "a.safetensors", 100, 10)
    assert not make_room(tmp_path, 100, 200)
    assert make_room(tmp_path, 50, 200)
    assert names(tmp_path) == {"b.1.making"}


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    put(tmp_path, "b.1.making", 150, 4000)
    put(tmp_path, "a.safetensors", 100, 10)
    assert make_room(tmp_path, 100, 200)
    assert names(tmp_path) == {"a.safetensors"}


@pytest.mark.parametrize(("free", "limit"), [(1000, 20), (40, 10 + 2)])
def test_by_default_a_quarter_of_the_disk_is_left_for_the_cache_at_most(
    free: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free * GIB))
    put(tmp_path, "a.safetensors", 8 * GIB, 10)  # it has a size, and no blocks
    assert choose_limit(tmp_path, None) == limit * GIB
    assert choose_limit(tmp_path, 5) == 5


def test_a_cache_that_does_not_exist_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert list_models() == []
