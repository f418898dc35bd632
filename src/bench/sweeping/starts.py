"""Runs of a sweep that measure how long an engine takes to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .parameters import Parameters
from .sweep import Measurement, call


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Runs of `tokenmill bench startup` or `vllm bench startup`, which start engines themselves."""

    startup: Sequence[str]
    """The command."""
    shows_output: bool = False

    @property
    def label(self) -> str:
        return "STARTUP"

    def commands(self, one: Measurement) -> list[list[str]]:
        path = Parameters(fields={"output_json": str(one.path)})
        return [path.apply(one.load.apply(one.server.apply(self.startup)))]

    def measure(self, one: Measurement) -> None:
        [command] = self.commands(one)
        call(command, None if self.shows_output else one.log)

    def stop(self) -> None:
        """Nothing runs between two measurements."""
