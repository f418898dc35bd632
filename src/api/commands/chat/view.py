"""Shows answers: plain text as it comes, and on a terminal as Markdown when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import termios
from collections.abc import Iterator
from typing import Protocol, TextIO

from .partner import Piece

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
WAITING = "…"
_TAB = " " * 4
_CONTROL: dict[int, str | None] = {
    code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) != "\n"
}
_CONTROL[ord("\t")] = _TAB


def make_view(*, renders: bool) -> View:
    """A view of standard output. `renders`: a terminal shows Markdown."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalView(sys.stdout, renders=renders)
    return PipedView()


class View(Protocol):
    """Shows one answer."""

    def show(self, piece: Piece) -> None:
        """Show a piece of it."""
        ...

    def end(self, *, is_complete: bool) -> None:
        """Called after the last piece."""
        ...


class PipedView:
    """Writes the answer, and nothing else, to standard output."""

    def show(self, piece: Piece) -> None:
        print(piece.text, end="", flush=True)

    def end(self, *, is_complete: bool) -> None:
        print(flush=True)


class TerminalView:
    """Shows an answer on a terminal: reasoning is dim, and control characters are left out.

    The text comes as it is. When it is complete, its Markdown replaces it, if all of it is still on
    the screen: a long answer that was printed again would have to be found first.
    """

    def __init__(self, out: TextIO, *, renders: bool) -> None:
        """`renders`: replace the text by its Markdown."""
        self._out = out
        self._renders = renders
        self._size = shutil.get_terminal_size()
        self._text = ""
        self._is_reasoning = False
        self._waits = True
        self._keys = contextlib.ExitStack()
        self._keys.enter_context(silent_keys())
        self._write(f"{DIM}{WAITING}{PLAIN}")

    def show(self, piece: Piece) -> None:
        if piece.reasoning:
            self._begin()
            self._renders = self._renders and not self._text  # else its rows are between others
            self._is_reasoning = True
            self._write(f"{DIM}{printable(piece.reasoning)}{PLAIN}")
        text = printable(piece.text)
        if not self._text:
            text = text.lstrip("\n")
        if text:
            self._begin()
            if self._is_reasoning and not self._text:
                self._write("\n\n")
            self._text += text
            self._write(text)

    def end(self, *, is_complete: bool) -> None:
        with self._keys:
            self._begin()
            if self._text or self._is_reasoning:
                self._write("\n")
            if is_complete and self._renders and self._text:
                self._render()

    def _begin(self) -> None:
        """Remove the mark of waiting."""
        if self._waits:
            self._waits = False
            self._write("\r\x1b[K")

    def _render(self) -> None:
        rendered = render_markdown(self._text, self._size.columns)
        rows = count_rows(self._text, self._size.columns)
        is_whole = rows < self._size.lines and self._size == shutil.get_terminal_size()
        if is_whole and rendered is not None:
            self._write(f"\x1b[{rows}A\r\x1b[J{rendered}")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def printable(text: str) -> str:
    """The text without characters that a terminal could take as orders."""
    return text.translate(_CONTROL)


def count_rows(text: str, width: int) -> int:
    """Number of rows that a terminal of this width takes for a text."""
    from rich.cells import cell_len

    rows = 0
    for line in text.split("\n"):
        rows, column = rows + 1, 0
        for character in line:
            cells = cell_len(character)
            if column + cells > width:
                rows, column = rows + 1, 0
            column += cells
    return rows


def render_markdown(text: str, width: int) -> str | None:
    """The text as Markdown with codes for colours; None if it has no markup."""
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown

    # As text: rich would leave out "<int>" in "vector<int>" as a tag of HTML.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    tokens = parser.parse(text)
    inner = [child.type for token in tokens for child in token.children or ()]
    if {token.type for token in tokens} <= _PARAGRAPH and set(inner) <= _WORDS:
        return None
    markdown = Markdown(text, hyperlinks=False, code_theme="ansi_dark")
    markdown.parsed = tokens
    console = Console(width=width, force_terminal=True)
    with console.capture() as captured:
        console.print(markdown)
    return captured.get()


_PARAGRAPH = {"paragraph_open", "inline", "paragraph_close"}
_WORDS = {"text", "softbreak"}


@contextlib.contextmanager
def silent_keys() -> Iterator[None]:
    """Do not show keys that are pressed during an answer: they belong to the next message."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    changed = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def tell(notice: str) -> None:
    """Show a notice on stderr, dim on a terminal."""
    for line in notice.split("\n"):
        print(f"{DIM}{line}{PLAIN}" if sys.stderr.isatty() else line, file=sys.stderr)
