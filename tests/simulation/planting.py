"""Plants a bug in the core, and sees which seed of the simulator finds it, and by which failure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tokenmill.testing.simulation import Life, LifeSettings
from tokenmill.testing.simulation.settings import MEDIA_SEEDS

NUM_SEEDS = 300


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug that somebody could write."""

    plant: Callable[[Planter], None]
    caught_as: tuple[str, ...]
    """Parts of failures ("Type: message") that show it. Any other failure is not a discovery."""
    settings: LifeSettings | None = None
    """The settings of the lives that show the bug; None: each seed draws its own."""
    needs_images: bool = False

    @property
    def seeds(self) -> range:
        """The seeds among which one finds it."""
        first = MEDIA_SEEDS if self.needs_images else 0
        return range(first, first + NUM_SEEDS)


class Planter:
    """Replaces functions and properties of the core, and counts how often each is used."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._num_calls: dict[str, int] = {}

    def setattr(self, owner: object, name: str, value: Any) -> None:
        """As `MonkeyPatch.setattr`; the value is a function or a property."""
        key = f"{getattr(owner, '__name__', owner)}.{name}"
        self._num_calls[key] = 0
        found = value.fget if isinstance(value, property) else value

        @functools.wraps(found)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._num_calls[key] += 1
            return found(*args, **kwargs)

        self._patch.setattr(
            owner, name, property(counted) if isinstance(value, property) else counted
        )

    @property
    def unused(self) -> list[str]:
        """Replacements that were never reached."""
        return [key for key, num_calls in self._num_calls.items() if not num_calls]


def find_first(bug: Bug, seeds: Iterable[int]) -> int | None:
    """The first seed whose life fails because of the planted bug; None: all ran clean.

    Raises whatever else a life raises: a bug that no longer fits the core is not a discovery.
    """
    for seed in seeds:
        try:
            Life(seed, bug.settings).run()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if not any(part in failure for part in bug.caught_as):
                error.add_note(f"seed {seed}: this does not count as caught: {bug.caught_as}")
                raise
            return seed
    return None
