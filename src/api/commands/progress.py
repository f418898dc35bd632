"""Shows progress of long work on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressDisplay:
    """Shows the progress of stages. Call it with (stage, fraction done), from any thread.

    It is a context manager.
    """

    def __init__(self, announce: Callable[[str, bool], None] | None = None) -> None:
        """`announce`: called with a stage and whether it is done, instead of all that is shown."""
        self._bar: Progress | None = None
        self._announce = announce or _print
        if announce is None and sys.stderr.isatty():
            self._bar = _make_bar()
        self._tasks: dict[str, TaskID] = {}
        self._announced: set[str] = set()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar, so that others can write to the terminal. Safe to call twice."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, stage: str, fraction: float) -> None:
        if self._bar is None:
            self._note(stage, fraction)
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=1.0)
        self._bar.update(self._tasks[stage], completed=fraction)

    def _note(self, stage: str, fraction: float) -> None:
        if stage not in self._announced:
            self._announced.add(stage)
            self._announce(stage, False)
        if fraction >= 1.0:
            self._announce(stage, True)


def _make_bar() -> Progress:
    """A bar on stderr. rich is imported only here, because it takes 6 MB of a server's process."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def _print(stage: str, is_done: bool) -> None:
    print(f"{stage}: done" if is_done else f"{stage} ...", file=sys.stderr, flush=True)
