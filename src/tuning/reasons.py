"""The settings that matter, and the cost of the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .capacity import Planner
from .space import Settings

NEGLIGIBLE = 0.005
"""A setting that raises the goodput by a smaller part is left as it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why settings are good."""

    losses: Mapping[str, float]
    """By setting: the part of the goodput that is lost without it."""
    without_limit: Mapping[str, float]
    """By limit: the goodput in requests per second if only this limit did not exist."""


def simplify(planner: Planner, settings: Settings) -> Settings:
    """Leave out settings that do not matter, one after the other."""
    kept = dict(settings)
    goodput = planner.capacity(kept).goodput
    for key in settings:
        fewer = {name: value for name, value in kept.items() if name != key}
        if planner.capacity(fewer).goodput >= goodput * (1 - NEGLIGIBLE):
            kept = fewer
    return kept


def explain(planner: Planner, settings: Settings) -> Reasons:
    """Take each setting back alone, and then each limit."""
    goodput = planner.capacity(settings).goodput

    def loss(key: str) -> float:
        fewer = {name: value for name, value in settings.items() if name != key}
        return 1 - planner.capacity(fewer).goodput / goodput

    return Reasons(
        losses={key: loss(key) for key in settings},
        without_limit={
            name: planner.with_limits(limits).capacity(settings).goodput
            for name, limits in planner.limits.without()
        },
    )
