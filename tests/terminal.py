"""A terminal for tests: runs a program on a pseudo-terminal, and shows what a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyte

PATIENCE = 90.0
"""Seconds that a test waits for a text that comes within a few on an idle machine."""
SILENCE = 10.0
"""Seconds without output after which a screen is taken as complete."""
MAX_LINES = 1000
_MASKS = (
    (re.compile(r"\d\d:\d\d:\d\d"), "hh:mm:ss"),
    (re.compile(r"\d+(\.\d+)? (ms|s|min)\b"), "N s"),
    (re.compile(r"(127\.0\.0\.1:)\d+"), r"\1PORT"),
    (re.compile(r"[\d.]+ tok/s"), "N tok/s"),
    (re.compile(r"\b0123456789\d*"), "ID"),
)


@dataclass(slots=True)
class Terminal:
    """A running program and its screen."""

    process: subprocess.Popen[bytes]
    fd: int
    screen: pyte.HistoryScreen
    seen: list[str] = field(default_factory=list)
    """All lines that were ever shown, without repetitions in a row."""

    def __post_init__(self) -> None:
        self._stream = pyte.ByteStream(self.screen)

    _stream: pyte.ByteStream = field(init=False)

    def wait_for(self, text: str, *, begin: int = 0) -> str:
        """The screen once one of its lines from `begin` on has a text."""
        self.wait_for_lines(lambda lines: any(text in line for line in lines[begin:]))
        return self.text()

    def wait_for_lines(self, is_reached: Callable[[list[str]], bool]) -> None:
        """Wait until the lines with text are as wanted."""
        end = time.monotonic() + PATIENCE
        while not is_reached(self.lines()):
            assert self._read() and time.monotonic() < end, f"still:\n{self.text()}"

    def wait_until(self, is_reached: Callable[[str], bool]) -> str:
        """The screen once it is as wanted, or when nothing more comes for a while."""
        while not is_reached(self.text()) and self._read(SILENCE):
            pass
        return self.text()

    def wait(self) -> int:
        """The exit status, once the program has ended and all of its output is on the screen."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def lines(self) -> list[str]:
        """The lines of `text` that are not empty."""
        return [line for line in self.text().splitlines() if line]

    def text(self) -> str:
        """The screen, and what has left it at the top."""
        above = ["".join(row[i].data for i in range(self.screen.columns)).rstrip()
                 for row in self.screen.history.top]  # fmt: skip
        return "\n".join([*above, *(line.rstrip() for line in self.screen.display)]).rstrip()

    def _read(self, patience: float = PATIENCE) -> bool:
        """Show the next output. False at its end, or if none comes."""
        readable, _, _ = select.select([self.fd], [], [], patience)
        try:
            data = os.read(self.fd, 65536) if readable else b""
        except OSError:  # the program and its children have closed the terminal
            data = b""
        self._stream.feed(data)
        self.seen += [line for line in self.text().splitlines() if line not in self.seen[-50:]]
        return bool(data)


@contextmanager
def on_terminal(
    command: Sequence[str],
    *,
    columns: int,
    lines: int,
    environment: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> Iterator[Terminal]:
    """Run a program on a new terminal, which is its controlling one. It is killed at the end."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    with os.fdopen(side, "wb", buffering=0) as stream:
        process = subprocess.Popen(
            command,
            stdin=stream,
            stdout=stream,
            stderr=stream,
            env={**_without_a_size(), "TERM": "xterm-256color", **environment},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    screen = pyte.HistoryScreen(columns, lines, history=MAX_LINES)
    screen.write_process_input = lambda answer: os.write(main, answer.encode())
    try:
        yield Terminal(process, main, screen)
    finally:
        process.kill()
        process.wait()
        os.close(main)


def _without_a_size() -> dict[str, str]:
    """The environment without the size of another terminal, which would win over this one's."""
    return {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}


def pasted(text: str) -> str:
    """The keys of a paste in a terminal that marks pastes."""
    return f"\x1b[200~{text.replace(chr(10), chr(13))}\x1b[201~"


def address_of(text: str) -> str:
    """The address in what `tokenmill serve` shows when it is ready."""
    [address] = re.findall(r"Address +(http://\S+)", text)
    return str(address)


def masked(text: str) -> str:
    """A screen without times, speeds and ports."""
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return text
