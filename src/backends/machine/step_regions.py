"""Collects the regions of a step while it is computed; see core/regions.py."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...core.regions import Region, Regions


class StepRegions:
    """Collects the regions of one step at a time. Stays empty if the step is not measured."""

    def __init__(self) -> None:
        self.is_measured = False
        """Whether the plan asks for the regions of this step."""
        self._found: list[Region] = []

    def begin(self, *, is_measured: bool) -> None:
        """Begin a step."""
        self.is_measured = is_measured
        self._found.clear()

    def add(self, regions: Iterable[Region]) -> None:
        """Add the regions of a call, in the order of time."""
        self._found.extend(regions)

    def end(self, name: str) -> None:
        """Add a region that began when the last one ended, and ends now. Does nothing
        without an earlier region: then the step is not measured, or no call of it has regions."""
        if self._found:
            began = self._found[-1].ended
            self._found.append(Region(name, None, began, time.monotonic()))

    def take(self) -> tuple[Regions, ...]:
        """The regions of the step, as StepResult has them."""
        return (Regions.of(self._found),) if self._found else ()
