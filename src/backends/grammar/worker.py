"""The process that tries grammars before their requests are admitted.

It compiles each grammar and fills a first mask. It may die of it: its time and memory are limited.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...core.processes.channels.frames import receive, send
from ...core.processes.entry import import_by_name
from ...core.processes.limits import limit_memory, limited_time
from ...core.requests.grammar import Grammar
from .base import GrammarBackend, GrammarError, GrammarSpec, MaskedRows
from .grammars import allow_all

CPU_SECONDS = 1.0
"""CPU time limit of a grammar. Most take 10 ms; the slowest of 300 public schemas takes 30 ms."""
MEMORY_BYTES = 1 << 29
"""Memory that a grammar may need beyond that of the process itself."""
TOO_SLOW = f"takes more than {CPU_SECONDS:g} s to compile"
TOO_LARGE = f"needs more than {MEMORY_BYTES >> 20} MiB to compile"
NICENESS = 10
"""Lets a core that is shared with the engine compute tokens first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """The first message: how to make the grammar backend."""

    factory: str
    """ "package.module:function"."""
    options: Mapping[str, Any] | None
    options_type: str | None
    """"package.module:Class" of the dataclass that the factory takes; None if it takes none."""
    spec: GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of trying a grammar in the worker."""

    error: str | None = None
    """Why the grammar cannot be used. None if it can."""
    ignored: tuple[str, ...] = field(default=())
    """Keywords that have no effect, of a grammar that is not strict."""


def main(sock: socket.socket) -> None:
    """Answer each grammar with a Verdict, until the other side is gone."""
    with contextlib.suppress(EOFError):
        os.nice(NICENESS)
        backend, num_words = _make(msgspec.msgpack.decode(receive(sock), type=WorkerStart))
        limit_memory(MEMORY_BYTES)
        while True:
            grammar = msgspec.msgpack.decode(receive(sock), type=Grammar)
            with limited_time(CPU_SECONDS):
                verdict = judge(backend, grammar, num_words)
            send(sock, msgspec.msgpack.encode(verdict))


def judge(backend: GrammarBackend, grammar: Grammar, num_words: int) -> Verdict:
    """Compile a grammar and fill its first mask: some errors show up only there."""
    try:
        compiled = backend.compile(grammar)
    except GrammarError as error:
        return Verdict(error=str(error))
    except MemoryError:
        return Verdict(error=TOO_LARGE)
    matcher = compiled.matcher()
    rows = MaskedRows(matcher=matcher, first_row=0, draft_token_ids=())
    backend.fill([rows], allow_all(1, num_words))
    return Verdict(error=matcher.error, ignored=tuple(compiled.ignored))


def _make(start: WorkerStart) -> tuple[GrammarBackend, int]:
    factory = import_by_name(start.factory)
    arguments = []
    if start.options_type is not None:
        arguments.append(import_by_name(start.options_type)(**(start.options or {})))
    backend: GrammarBackend = factory(*arguments)(start.spec)
    return backend, start.spec.num_words
