"""The observers of one event, which are called in order and cut off after three failures."""

from __future__ import annotations

from typing import Any

from .guard import FAILED, Guard


class Observers:
    """All implementations of one hook, in the order in which they are called."""

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        self.guards = guards
        self._called = guards

    def __bool__(self) -> bool:
        """Whether any plugin is called."""
        return bool(self._called)

    def __call__(self, *arguments: object) -> list[tuple[Guard, Any]]:
        """Call all of them; returns the answers that are not None, each with its plugin's guard."""
        answers = []
        for guard in self._called:
            answer = guard(*arguments)
            if answer is FAILED:
                self._cut_off()
            elif answer is not None:
                answers.append((guard, answer))
        return answers

    def reject(self, guard: Guard, complaint: str) -> None:
        """Count a wrong answer as a failure of its plugin."""
        guard.fail(complaint)
        self._cut_off()

    def _cut_off(self) -> None:
        self._called = tuple(guard for guard in self._called if not guard.is_out)
