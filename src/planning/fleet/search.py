"""Finds the smallest fleet that keeps the limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...core.errors import ConfigError
from .outcome import FleetOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search."""

    num_replicas: int | None
    """The smallest number that is enough; None if even the maximum is not."""
    tried: Mapping[int, float]
    """The goodput of each number that was tried, ascending."""
    outcome: FleetOutcome
    """With that number, or with the maximum."""


def find_replicas(run: Callable[[int], FleetOutcome], goal: float, highest: int) -> Found:
    """Double the number until its goodput reaches `goal`, then bisect.

    It is exact as long as more replicas never have less goodput. `run` serves the load with a
    number of replicas.
    """
    if not 0 < goal <= 1:
        raise ConfigError(f"--goal must be in (0, 1], got {goal}")
    if highest < 1:
        raise ConfigError(f"--max-replicas must be at least 1, got {highest}")
    outcomes: dict[int, FleetOutcome] = {}

    def is_enough(number: int) -> bool:
        outcomes[number] = run(number)
        return outcomes[number].goodput >= goal

    below, enough = 0, 1
    while not is_enough(enough):
        if enough == highest:
            return Found(num_replicas=None, tried=_tried(outcomes), outcome=outcomes[highest])
        below, enough = enough, min(2 * enough, highest)
    while enough - below > 1:
        middle = (below + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            below = middle
    return Found(num_replicas=enough, tried=_tried(outcomes), outcome=outcomes[enough])


def _tried(outcomes: Mapping[int, FleetOutcome]) -> dict[int, float]:
    return {number: outcomes[number].goodput for number in sorted(outcomes)}
