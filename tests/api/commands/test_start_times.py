"""The durations of the last start are found again, whatever happens to their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.api.commands import start_times
from tokenmill.api.commands.start_times import FILE, MAX_STARTS, last_times, remember


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tokenmill" / FILE


def test_stages_that_did_not_run_again_keep_their_times() -> None:
    assert last_times("a") == {}
    remember("a", {"compiling": 48.0, "loading": 2.0})
    remember("b", {"loading": 9.0})
    remember("a", {"loading": 1.004})
    assert last_times("a") == {"compiling": 48.0, "loading": 1.0}
    assert last_times("b") == {"loading": 9.0}


def test_the_oldest_starts_are_forgotten() -> None:
    for number in range(MAX_STARTS + 1):
        remember(str(number), {"loading": 1.0})
    assert last_times("0") == {} and last_times("1") and last_times(str(MAX_STARTS))


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": {"b": "c"}}', b"\xff", b"{" * 100_000])
def test_a_damaged_file_is_as_good_as_none(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert last_times("a") == {}
    remember("a", {"loading": 1.0})
    assert last_times("a") == {"loading": 1.0}
    assert [path.name for path in file.parent.iterdir()] == [FILE]


def test_a_cache_that_cannot_be_used_is_no_error(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.write_text("no folder")
    remember("a", {"loading": 1.0})
    assert last_times("a") == {}
    monkeypatch.setattr(start_times, "_path", lambda: None)
    remember("a", {"loading": 1.0})
    assert last_times("a") == {}
