"""Shows answers: plain text as it comes, and on a terminal as Markdown when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import termios
import textwrap
from collections.abc import Iterator
from typing import Protocol, TextIO

from .connection.partner import Piece
from .rendering import WordWrap, last_blocks, printable, render_markdown

BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
WAITING = "..."


def make_view(*, renders: bool) -> View:
    """A view of standard output. `renders`: a terminal shows Markdown."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalView(sys.stdout, renders=renders)
    return PipedView()


class View(Protocol):
    """Shows one answer."""

    def show(self, piece: Piece) -> None: ...

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

    The text comes as it is. When it is complete, Markdown replaces the blocks that are still on the
    screen; a terminal cannot replace what has left it.
    """

    def __init__(self, out: TextIO, *, renders: bool) -> None:
        """`renders`: replace the text by its Markdown."""
        self._out = out
        self._renders = renders
        self._size = shutil.get_terminal_size()
        self._text, self._wrap = "", WordWrap(self._size.columns)
        self._reasoning, self._reasoning_wrap = "", WordWrap(self._size.columns)
        self._waits = True
        self._keys = contextlib.ExitStack()
        self._keys.enter_context(silent_keys())
        self._write(f"{DIM}{WAITING}{PLAIN}")

    def show(self, piece: Piece) -> None:
        if reasoning := self._new(piece.reasoning, self._reasoning):
            self._renders = self._renders and not self._text  # else it stands between the rows
            self._reasoning += reasoning
            self._write(f"{DIM}{self._reasoning_wrap.add(reasoning)}{PLAIN}")
        if text := self._new(piece.text, self._text):
            if self._reasoning and not self._text:
                self._write("\n\n")
            self._text += text
            self._write(self._wrap.add(text))

    def end(self, *, is_complete: bool) -> None:
        with self._keys:
            self._begin()
            if self._text or self._reasoning:
                self._write("\n")
            if is_complete and self._renders and self._text:
                self._render()

    def _new(self, text: str, before: str) -> str:
        """The text to print, without empty lines at its beginning."""
        text = printable(text)
        text = text if before else text.lstrip("\n")
        if text:
            self._begin()
        return text

    def _begin(self) -> None:
        """Remove the mark of waiting."""
        if self._waits:
            self._waits = False
            self._write("\r\x1b[K")

    def _render(self) -> None:
        if self._size != shutil.get_terminal_size():
            return  # the terminal has wrapped the lines again
        width, height = self._size
        text, rows = last_blocks(self._text, width, height - 1)
        rendered = render_markdown(text, width)
        if rendered is not None:
            self._write(f"\x1b[{rows}A\r\x1b[J{rendered}")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


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
    """Show a notice on stderr: on a terminal dim, errors in bold type, wrapped between words."""
    if not sys.stderr.isatty():
        print(notice, file=sys.stderr)
        return
    style, columns = BOLD if notice.startswith("error:") else DIM, shutil.get_terminal_size()[0]
    for line in notice.split("\n"):
        for row in wrapped(line, columns):
            print(f"{style}{row}{PLAIN}", file=sys.stderr)


def wrapped(line: str, columns: int) -> list[str]:
    """The rows of a line. In a table of two columns, the second is wrapped inside its column."""
    name = re.match(r"\S.*? {2,}", line)
    indent = name.end() if name and name.end() < columns // 2 else 0
    return textwrap.wrap(line, columns, subsequent_indent=" " * indent) or [""]
