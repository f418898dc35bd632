"""Text that a child or this process prints arrives as lines."""

from __future__ import annotations

import logging
import os
import sys
import threading

import pytest

from tokenmill.core.processes.printed import (
    MAX_LINE,
    MAX_LINES,
    PIECE,
    PrintedPipe,
    prints_shown,
    show_printed,
)


def printed(*texts: bytes) -> list[str]:
    lines: list[str] = []
    output = PrintedPipe(lines.append)
    for text in texts:
        os.write(output.writer, text)
        output.receive()
    output.close()
    return lines


def test_lines_arrive_whole_and_the_last_one_at_the_end() -> None:
    assert printed(b"one\ntw", b"o\n\n \r\nthree") == ["one", "two", "three"]


def test_a_progress_bar_is_one_line_without_colors() -> None:
    assert printed(b"0 %\r50 %\r", b"\x1b[32m100 %\x1b[0m\r\n") == ["100 %"]


def test_text_without_an_end_is_divided_and_does_not_grow() -> None:
    lines = printed(*[b"a" * PIECE] * 5, b"\xff")
    assert "".join(lines) == "a" * 5 * PIECE + "\ufffd"
    assert max(map(len, lines)) <= MAX_LINE


def test_of_many_lines_the_first_and_the_last_are_shown() -> None:
    lines = printed(*[b"%d\n" % i for i in range(3 * MAX_LINES)])
    first, last = map(str, range(MAX_LINES)), map(str, range(2 * MAX_LINES, 3 * MAX_LINES))
    assert lines == [*first, f"[{MAX_LINES} lines are left out]", *last]


def test_a_program_without_this_log_gets_the_text_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tokenmill"), "handlers", [])
    show_printed("a plugin prints")
    assert capsys.readouterr().err == "a plugin prints\n"


def test_what_python_code_of_this_process_prints_is_shown_line_by_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []
    before = sys.stdout, sys.stderr
    with prints_shown(lines.append):
        print("one", "\x1b[31mtwo\x1b[0m", end="")
        assert not lines
        print()
        print("three", file=sys.stderr)
        sys.stdout.buffer.write("vier: für\n".encode())
        thread = threading.Thread(target=print, args=("a thread prints",))
        thread.start()
        thread.join()
        assert not sys.stderr.isatty()
        os.write(sys.stderr.fileno(), b"native code writes\n")
        print("the end", end="")
    assert (sys.stdout, sys.stderr) == before
    assert lines == ["one two", "three", "vier: für", "a thread prints", "the end"]
    assert capfd.readouterr() == ("", "native code writes\n")


def test_a_stream_that_is_used_after_the_end_shows_no_line_twice() -> None:
    lines: list[str] = []
    with prints_shown(lines.append):
        kept = sys.stdout
        print("begun", end="")
    assert lines == ["begun"]
    kept.write(" again\n")
    assert lines == ["begun", " again"]


def test_a_log_that_prints_because_it_fails_does_not_call_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def show(line: str) -> None:
        print(f"cannot show {line!r}", file=sys.stderr)

    with prints_shown(show):
        print("text")
    assert capsys.readouterr().err == "cannot show 'text'\n"
