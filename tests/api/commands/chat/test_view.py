"""How an answer looks on a terminal, on the screen of one in memory."""

from __future__ import annotations

import io
import os
import unicodedata

import pyte
import pytest

from tokenmill.api.commands.chat import view
from tokenmill.api.commands.chat.connection.partner import Piece
from tokenmill.api.commands.chat.rendering import WordWrap
from tokenmill.api.commands.chat.view import TerminalView, wrapped

WIDTH, HEIGHT = 20, 8


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal's size, and no keys."""
    monkeypatch.setattr(view.shutil, "get_terminal_size", lambda: os.terminal_size((WIDTH, HEIGHT)))
    monkeypatch.setattr("sys.stdin", io.StringIO())


def screen_after(*pieces: Piece, renders: bool = True, is_complete: bool = True) -> list[str]:
    """All rows with text, after a row that stood there before."""
    out = io.StringIO()
    out.write("before\r\n")
    shown = TerminalView(out, renders=renders)
    for piece in pieces:
        shown.show(piece)
    shown.end(is_complete=is_complete)
    screen = pyte.HistoryScreen(WIDTH, HEIGHT)
    pyte.Stream(screen).feed(out.getvalue().replace("\r\n", "\n").replace("\n", "\r\n"))
    rows = [*screen.history.top, *screen.buffer.values()]
    texts = ["".join(row[x].data for x in range(WIDTH)).strip() for row in rows]
    assert texts.pop(0) == "before"
    return [text for text in texts if text]


def texts(*pieces: str) -> list[Piece]:
    return [Piece(text=piece) for piece in pieces]


def test_markdown_replaces_the_text_when_the_answer_is_complete() -> None:
    assert screen_after(*texts("**So", "me** `c", "ode`")) == ["Some code"]
    assert screen_after(*texts("**Some**"), renders=False) == ["**Some**"]
    assert screen_after(*texts("**Some**"), is_complete=False) == ["**Some**"]


@pytest.mark.parametrize("text", ["x" * WIDTH, "x" * (WIDTH - 4), "漢字" * 9])
def test_lines_of_any_width_are_replaced_completely(text: str) -> None:
    rows = screen_after(*texts(f"**{text}**\n\n*end*\n"))
    assert not any("*" in row for row in rows) and rows[-1] == "end"
    assert "".join(rows).count(text[0]) == text.count(text[0])


def test_what_has_left_the_screen_is_not_printed_again() -> None:
    lines = [f"- line {number}" for number in range(HEIGHT)]
    assert screen_after(*texts("\n".join(lines))) == lines
    text = "\n\n".join(f"**line {number}**" for number in range(HEIGHT))
    on_screen = range(HEIGHT - HEIGHT // 2, HEIGHT)
    assert screen_after(*texts(text)) == [
        f"line {number}" if number in on_screen else f"**line {number}**"
        for number in range(HEIGHT)
    ]


def test_text_without_markup_stays_as_it_is() -> None:
    assert screen_after(*texts("one\ntwo")) == ["one", "two"]


def test_the_lines_of_a_poem_stay_lines() -> None:
    assert screen_after(*texts("*one*\ntwo")) == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a line that is long enough for two", ["a line that is long", "enough for two"]),
        ("nineteen-characters x", ["nineteen-characters", "x"]),
        ("x" * 25 + " y", ["x" * 19, "x" * 6 + " y"]),
        ("漢字" * 6, ["漢字" * 4 + "漢", "字漢字"]),
        ("eighteen-character e\u0301e\u0301 e", ["eighteen-character", "e\u0301e\u0301 e"]),
    ],
)
def test_lines_break_between_words_in_pieces_of_any_length(text: str, rows: list[str]) -> None:
    whole, single = screen_after(*texts(text)), screen_after(*texts(*text))
    assert [unicodedata.normalize("NFD", row) for row in whole] == rows
    assert single == whole


def test_what_looks_like_html_is_kept() -> None:
    assert screen_after(*texts("*a* vector<int> b")) == ["a vector<int> b"]


def test_reasoning_stays_above_the_answer() -> None:
    pieces = [Piece(reasoning="let me "), Piece(reasoning="think"), *texts("\n\n**Yes**")]
    assert screen_after(*pieces) == ["let me think", "Yes"]


def test_an_answer_cannot_send_orders_to_the_terminal() -> None:
    assert screen_after(*texts("a\x1b[2Jb\x9b2Jc\rd\x07")) == ["a[2Jb2Jcd"]


def test_a_terminal_without_width_shows_something() -> None:
    assert WordWrap(1).add("a漢 b").replace("\n", "") == "a漢b"


def test_a_notice_is_wrapped_between_words_below_its_own_column() -> None:
    rows = wrapped("last answer  12 tokens in, 40 out, TTFT 85 ms, 38.2 tokens/s", 40)
    assert rows == [
        "last answer  12 tokens in, 40 out, TTFT",
        "             85 ms, 38.2 tokens/s",
    ]
    assert wrapped("stopped: the text so far is kept", 20) == [
        "stopped: the text so",
        "far is kept",
    ]
    assert wrapped("", 20) == [""]
