"""Messages from the keyboard and from a pipe."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.api.commands.chat.prompt import (
    HISTORY_BYTES,
    PlainPrompt,
    history_file,
    message_of,
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  hello ", "hello"),
        ('"""one\ntwo"""', "one\ntwo"),
        ('"""\n/clear\n"""', " /clear"),
        (" /clear", " /clear"),
        ("/clear ", "/clear"),
        ("/* code */\nmore", " /* code */\nmore"),
        ('say """', 'say """'),
    ],
)
def test_quotes_and_spaces_around_a_message_are_not_sent(text: str, message: str) -> None:
    assert message_of(text) == message


def test_quotes_join_lines_to_one_message() -> None:
    lines: Iterator[str] = iter(['"""one', "", 'two"""', "three", '"""four'])

    def read(shown: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    prompt = PlainPrompt(read)
    assert [prompt.read() for _ in range(3)] == ["one\n\ntwo", "three", "four"]
    with pytest.raises(EOFError):
        prompt.read()


def test_only_the_user_can_read_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = history_file(pytest.fail)
    assert file is not None and file.parent.parent == tmp_path
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


def test_a_long_history_loses_its_oldest_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = history_file(pytest.fail)
    assert file is not None
    entries = [f"\n# 2026-01-01\n+{number:099}\n" for number in range(HISTORY_BYTES // 100)]
    file.write_text("".join(entries))
    history_file(pytest.fail)
    kept = file.read_text()
    assert "".join(entries).endswith(kept) and kept.startswith(entries[0][:14])
    assert HISTORY_BYTES // 3 < len(kept) <= HISTORY_BYTES // 2


def test_without_a_place_there_is_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    notices: list[str] = []
    assert history_file(notices.append) is None
    assert "there is no history" in notices[0]
