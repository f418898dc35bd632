"""A grammar backend whose worker process is killed by some grammars. It imports no torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tokenmill.backends.grammar.base import GrammarError
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.core.requests.grammar import Grammar

SPINS, EATS, CRASHES, KILLED = "spin", "eat", "crash", "killed"


class Hostile(LLGuidance):
    """In the engine's own process these grammars are refused with another reason."""

    is_worker = False

    def compile(self, grammar: Grammar) -> Any:
        harm = _HARM.get(grammar.text.rstrip("x"))  # large ones end with many of it
        if harm is not None:
            if not self.is_worker:
                raise GrammarError("was not tried in the worker")
            harm()
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


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _be_killed() -> None:
    """As by the kernel, when the machine has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


_HARM: dict[str, Callable[[], None]] = {
    SPINS: _spin,
    EATS: _eat,
    CRASHES: _crash,
    KILLED: _be_killed,
}
