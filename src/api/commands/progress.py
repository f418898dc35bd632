"""Shows progress of long work on stderr: a block of stages on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.text import Text

NAME_WIDTH, BAR_WIDTH = 38, 12
TIMES_WIDTH = 24
"""Columns that a narrow terminal keeps for a bar, its fraction and a time."""
FRAMES_PER_SECOND = 8


@dataclass(slots=True)
class Stage:
    """One stage of the work: when it began, and how far it is."""

    begun: float
    fraction: float = 0.0
    seconds: float | None = None
    """Its duration, once it is done."""


class ProgressDisplay:
    """Shows the progress of stages. Call it with (stage, fraction done), from any thread.

    It is a context manager. On a terminal, it owns standard output and error until it stops: what
    others write appears above it.
    """

    def __init__(
        self,
        announce: Callable[[str, float | None], None] | None = None,
        *,
        title: str = "",
        expected: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`announce`: called with a stage and, once it is done, its seconds, instead of all that is
        shown. `title`: a line above the stages. `expected`: seconds that stages took before."""
        self._announce = announce or _print
        self._title, self._expected = title, expected
        self._begun = time.monotonic()
        self._stages: dict[str, Stage] = {}
        self._has_stopped = self._has_failed = False
        self._is_shown = announce is None and sys.stderr.isatty()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        if self._title:
            self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._has_failed = error is not None and not self._has_stopped
        self.stop()

    @property
    def seconds(self) -> dict[str, float]:
        """The durations of the stages that are done."""
        done = ((name, stage.seconds) for name, stage in self._stages.items())
        return {name: seconds for name, seconds in done if seconds is not None}

    def stop(self) -> None:
        """Leave the block as it is, and the terminal to others. Safe to call twice."""
        self._has_stopped = True
        if self._live is not None:
            self._live.stop()

    def __call__(self, stage: str, fraction: float) -> None:
        if self._has_stopped:
            return  # an engine that is started again, while others own the terminal
        now, known = time.monotonic(), self._stages.get(stage)
        if known is None or (known.seconds is not None and fraction == 0.0):
            known = self._stages[stage] = Stage(now)
            if not self._is_shown:
                self._announce(stage, None)
        known.fraction = max(known.fraction, fraction)
        if fraction >= 1.0 and known.seconds is None:
            known.seconds = now - known.begun
            if not self._is_shown:
                self._announce(stage, known.seconds)
        self._show()

    def _show(self) -> None:
        """Begin to show the block. rich is imported only here, because it takes 6 MB of a server's
        process."""
        if not self._is_shown or self._live is not None:
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        self._live = Live(self, console=console, refresh_per_second=FRAMES_PER_SECOND)
        self._live.start()
        console.show_cursor()  # a process that is killed could not bring it back

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        width = min(NAME_WIDTH, max(0, options.max_width - TIMES_WIDTH - len("  > ")))
        if self._title:
            title = self._title[: width + 2]
            yield _line(f"{title:<{width + 2}} {duration(now - self._begun)}")
        for name, stage in tuple(self._stages.items()):
            yield self._row(name, stage, now, width, is_ascii=options.ascii_only)

    def _row(self, name: str, stage: Stage, now: float, width: int, *, is_ascii: bool) -> Text:
        times = duration(now - stage.begun if stage.seconds is None else stage.seconds)
        if stage.seconds is not None:
            mark, color = "*✓"[not is_ascii], "green"
        elif self._has_failed:
            mark, color = "x✗"[not is_ascii], "red"
        else:
            mark, color = ">•"[not is_ascii], "cyan"
            times = f"{_bar(stage.fraction, is_ascii=is_ascii)} {self._times(name, stage, now)}"
        row = _line(f"  {mark} {name[:width]:<{width}} {times}")
        row.stylize(color, 2, 3)
        return row

    def _times(self, name: str, stage: Stage, now: float) -> str:
        """The time that has passed, and that of the last start. The fraction that is done gives no
        time: the files that take longest are compiled first."""
        passed, expected = now - stage.begun, self._expected.get(name, 0.0)
        limit = f" of about {duration(expected)}" if expected > passed else ""
        return f"{stage.fraction:>4.0%} {duration(passed)}{limit}"


def duration(seconds: float) -> str:
    """A time as people read it: "0.4 s", "48 s" or "12 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _bar(fraction: float, *, is_ascii: bool) -> str:
    full, rest = "#-" if is_ascii else "━╌"
    count = min(BAR_WIDTH, int(BAR_WIDTH * fraction))
    return full * count + rest * (BAR_WIDTH - count)


def _line(text: str) -> Text:
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="crop")


def _print(stage: str, seconds: float | None) -> None:
    state = "..." if seconds is None else f"done in {duration(seconds)}"
    separator = " " if seconds is None else ": "
    print(f"{stage}{separator}{state}", file=sys.stderr, flush=True)
