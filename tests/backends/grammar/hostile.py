"""A grammar backend whose worker process is killed by some grammars. It imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tokenmill.backends.grammar.base import GrammarError
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.core.grammar import Grammar

SPINS, EATS, DIES = "spin", "eat", "die"


class Hostile(LLGuidance):
    """In the engine's own process these grammars are refused with another reason."""

    is_worker = False

    def compile(self, grammar: Grammar) -> Any:
        if grammar.text in _HARM:
            if not self.is_worker:
                raise GrammarError("was not tried in the worker")
            _HARM[grammar.text]()
        return super().compile(grammar)


class HostileInWorker(Hostile):
    is_worker = True


def make_hostile() -> type[Hostile]:
    return HostileInWorker


def _spin() -> None:
    while True:
        pass


def _eat() -> None:
    kept = []
    while True:
        kept.append(bytes(1 << 24))


def _die() -> None:
    os.kill(os.getpid(), 9)


_HARM: dict[str, Callable[[], None]] = {SPINS: _spin, EATS: _eat, DIES: _die}
