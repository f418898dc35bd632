"""Records a session of `tokenmill chat` in a terminal as an animation: docs/pictures/chat.svg.

python scripts/docs/record_chat.py

It needs the extra `dev` and the default model. It starts a shell on a pseudoterminal, types what
SESSION says, and waits for the prompt after each line. The picture shows what the terminal showed;
only pauses of more than PAUSE are shortened. It loops, and shows the last screen to readers who
switched animations off. Record it again when the look of `chat` changes.
"""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyte

PICTURE = Path(__file__).parents[2] / "docs/pictures/chat.svg"
SESSION = (
    "tokenmill chat",
    "What is the capital of Japan?",
    "Why is the sky blue? One sentence.",
    "/show",
)
PROMPTS = ("$", ">>>")
COLUMNS, ROWS = 64, 20
KEY, QUIET, FRAME, PAUSE, LAST = 0.05, 0.8, 0.1, 0.9, 5.0
"""Seconds: between two keys, without output until a prompt counts, between two frames, the longest
pause, and the time that the last screen stays."""
TIMEOUT = 180.0

WIDTH, LINE, MARGIN, TOP = 8.4, 19, 16, 40
"""Pixels: width of a character, height of a line, space around the text, height of the title."""
COLOURS = {
    "default": "#e6edf3", "black": "#6e7681", "red": "#ff7b72", "green": "#3fb68b",
    "brown": "#d29922", "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#56d4dd",
    "white": "#e6edf3", "brightblack": "#8b949e", "brightred": "#ffa198",
    "brightgreen": "#56d364", "brightbrown": "#e3b341", "brightblue": "#a5d6ff",
    "brightmagenta": "#e2c5ff", "brightcyan": "#76e3ea", "brightwhite": "#ffffff",
}  # fmt: skip
"""By pyte's names, on a dark window: it can be read on light and on dark pages."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of one line that look the same."""

    column: int
    text: str
    colour: str
    is_bold: bool


Line = tuple[Span, ...]
Frame = tuple[Line, ...]


class Terminal(pyte.Screen):
    """A screen that answers when the program asks for the position of the cursor."""

    def __init__(self, controller: int) -> None:
        super().__init__(COLUMNS, ROWS)
        self._controller = controller

    def write_process_input(self, data: str) -> None:
        os.write(self._controller, data.encode())


def main() -> None:
    frames = record(SESSION)
    PICTURE.write_text(draw(shortened(frames)), encoding="utf-8")
    print(f"{PICTURE}: {len(frames)} frames, {PICTURE.stat().st_size / 1000:.0f} kB")


def record(session: Sequence[str]) -> list[tuple[float, Frame]]:
    """Type the session, and return each screen with its time in seconds."""
    with TemporaryDirectory() as home:
        controller, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=home, env=environment(home),
            start_new_session=True, preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(terminal)
        try:
            return list(play(controller, session))
        finally:
            shell.kill()
            shell.wait()
            os.close(controller)


def environment(home: str) -> dict[str, str]:
    """A new user's, except for the compiled kernels and the commands of this Python."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {
        "HOME": home,
        "XDG_CACHE_HOME": cache,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PS1": "$ ",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }


def play(controller: int, session: Sequence[str]) -> Iterator[tuple[float, Frame]]:
    """Type each line when the prompt waits. Yields a frame whenever the screen has changed."""
    screen = Terminal(controller)
    stream = pyte.ByteStream(screen)
    begin = time.monotonic()
    for line in (*session, ""):
        for shown in until_prompt(controller, screen, stream):
            yield shown - begin, read(screen)
        for key in line and f"{line}\r":
            os.write(controller, key.encode())
            for shown in output(controller, stream, KEY):
                yield shown - begin, read(screen)


def until_prompt(controller: int, screen: pyte.Screen, stream: pyte.ByteStream) -> Iterator[float]:
    """The times at which the screen has changed, until a prompt waits for input."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        changes = list(output(controller, stream, FRAME))
        yield from changes[-1:]
        if not changes and screen.display[screen.cursor.y].strip() in PROMPTS:
            if not (late := list(output(controller, stream, QUIET))):
                return
            yield late[-1]
    raise TimeoutError(f"no prompt after {TIMEOUT:.0f} s:\n" + "\n".join(screen.display))


def output(controller: int, stream: pyte.ByteStream, seconds: float) -> Iterator[float]:
    """Feed what the program writes within some seconds to the screen. Yields the times."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([controller], [], [], left)[0]:
            stream.feed(os.read(controller, 65536))
            yield time.monotonic()


def read(screen: pyte.Screen) -> Frame:
    """The screen as spans, line by line."""
    return tuple(read_line(screen, y) for y in range(ROWS))


def read_line(screen: pyte.Screen, y: int) -> Line:
    cells = [screen.buffer[y][x] for x in range(COLUMNS)]
    spans, column = [], 0
    for (colour, is_bold), group in groupby(cells, key=lambda c: (c.fg, c.bold)):
        text = "".join(cell.data for cell in group)
        if text.strip():
            before = len(text) - len(text.lstrip())
            spans.append(Span(column + before, text.strip(), colour, is_bold))
        column += len(text)
    return tuple(spans)


def shortened(frames: Sequence[tuple[float, Frame]]) -> list[tuple[float, Frame]]:
    """Frames that differ from the one before, without long pauses. Starts at 0."""
    changes = [next(group) for _, group in groupby(frames, key=lambda timed: timed[1])]
    kept = [(0.0, changes[0][1])]
    for (before, _), (then, frame) in pairwise(changes):
        kept.append((kept[-1][0] + min(then - before, PAUSE), frame))
    return kept


def draw(frames: Sequence[tuple[float, Frame]]) -> str:
    """An animation in which each line is visible from when to when it was on the screen."""
    total = frames[-1][0] + LAST
    styles: list[str] = []
    texts: list[str] = []
    for y in range(ROWS):
        runs = [(next(group)) for _, group in groupby(frames, key=lambda f: f[1][y])]
        ends = [*(start for start, _ in runs[1:]), None]
        for (start, frame), end in zip(runs, ends, strict=True):
            if not frame[y]:
                continue
            name = f"l{len(styles)}"
            steps = [f"0%{{visibility:hidden}}{start / total:.2%}{{visibility:visible}}"]
            steps += [f"{end / total:.2%}{{visibility:hidden}}"] if end is not None else []
            styles.append(f"@keyframes {name}{{{''.join(steps)}}}.{name}{{animation-name:{name}}}")
            kind = name if end is not None else f"{name} end"
            texts.append(f'<g class="{kind}">{"".join(map(draw_span, frame[y], [y] * 99))}</g>')
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * LINE + TOP + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">\n'
        f"<style>g{{visibility:hidden;animation:{total:.2f}s step-end infinite}}"
        ".end{visibility:visible}text{white-space:pre}"
        f"{''.join(styles)}"
        "@media (prefers-reduced-motion:reduce){g{animation:none}}</style>\n"
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#161b22"/>\n'
        + "".join(
            f'<circle cx="{20 + 20 * i}" cy="20" r="6" fill="{c}"/>'
            for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        )
        + "\n"
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def draw_span(span: Span, y: int) -> str:
    x = MARGIN + span.column * WIDTH
    colour = COLOURS.get(span.colour, f"#{span.colour}")
    bold = ' font-weight="600"' if span.is_bold else ""
    # The length keeps columns in line, whatever the reader's font.
    return (
        f'<text x="{x:.1f}" y="{TOP + LINE * y + 14}" textLength="{len(span.text) * WIDTH:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" fill="{colour}"{bold}>{escape(span.text)}</text>'
    )


if __name__ == "__main__":
    main()
