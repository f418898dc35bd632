"""A terminal in memory: runs a program on a pseudoterminal and keeps the screen that it draws."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

PATIENCE = 90.0
"""Seconds that a test waits for the screen."""


def pasted(text: str) -> str:
    """The keys of a paste in a terminal that marks pastes."""
    return f"\x1b[200~{text.replace(chr(10), chr(13))}\x1b[201~"


@dataclass(slots=True)
class Terminal:
    """A running program and its screen."""

    process: subprocess.Popen[bytes]
    master: int
    screen: pyte.HistoryScreen
    stream: pyte.ByteStream

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def lines(self) -> list[str]:
        """The rows with text: those that were scrolled away, too."""
        screen = self.screen
        rows = [*screen.history.top, *(screen.buffer[y] for y in range(screen.lines))]
        texts = ["".join(row[x].data for x in range(self.screen.columns)) for row in rows]
        return [text.rstrip() for text in texts if text.strip()]

    def wait_for(self, text: str, *, begin: int = 0) -> None:
        """Wait until `text` stands in one of the lines from `begin` on."""
        self.wait_until(lambda lines: any(text in line for line in lines[begin:]))

    def wait_until(self, is_reached: Callable[[list[str]], bool]) -> None:
        """Wait until the lines are as wanted."""
        end = time.monotonic() + PATIENCE
        while not is_reached(self.lines()):
            assert self._read(end), f"still {self.lines()}"

    def wait_for_end(self) -> int:
        """The exit status."""
        end = time.monotonic() + PATIENCE
        while self._read(end):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, end: float) -> bool:
        """Draw what comes next; False at the end of the program, or of the test's patience."""
        ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
        try:
            found = os.read(self.master, 1 << 16) if ready else b""
        except OSError:  # the program has ended
            found = b""
        self.stream.feed(found)
        return bool(found)


@contextlib.contextmanager
def terminal(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    columns: int = 80,
    rows: int = 24,
) -> Iterator[Terminal]:
    """Run a program on a terminal; it is killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env={**os.environ, "TERM": "xterm-256color", **environment},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        start_new_session=True,
    )
    os.close(slave)
    screen = pyte.HistoryScreen(columns, rows, history=1000)
    screen.write_process_input = lambda answer: os.write(master, answer.encode())
    try:
        yield Terminal(process, master, screen, pyte.ByteStream(screen))
    finally:
        process.kill()
        process.wait()
        os.close(master)
