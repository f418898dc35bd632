"""The hooks of plugins that run in an engine's process, as its parent process can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...processes.watching.board import Board
from .guard import Guard

_SEPARATOR = "\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCall:
    """A hook that runs, or that ran when the process ended."""

    plugin: str
    hook: str
    source: str
    """The plugin with its distribution and version, as text."""

    def __str__(self) -> str:
        return f"in {self.source}, hook {self.hook!r}"


def show_calls(guards: Sequence[Guard], board: Board) -> None:
    """Let these guards write on the board when they call their hooks."""
    facts = ((g.source.plugin, g.hook, str(g.source)) for g in guards)
    names = [_SEPARATOR.join(" ".join(text.split()) for text in texts) for texts in facts]
    for guard, mark in zip(guards, board.name_calls(names), strict=True):
        guard.mark = mark


def read_calls(board: Board) -> tuple[RunningCall, ...]:
    """The hooks that run now, or did when the process ended.

    Names that a crash has damaged are left out.
    """
    found = (name.split(_SEPARATOR) for name in board.running_calls)
    return tuple(
        RunningCall(plugin=texts[0], hook=texts[1], source=texts[2])
        for texts in found
        if len(texts) == 3
    )
