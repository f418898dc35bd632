"""Checks grammars before their requests are admitted, in a process that a bad grammar may end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import msgspec

from ...core.errors import InvalidRequestError, OverloadedError
from ...core.grammar import Grammar
from ...core.log import get_logger
from ...core.processes.child import Child, spawn
from ...core.processes.frames import receive, send
from .base import GrammarError
from .grammars import Grammars
from .keeping import LastUsed
from .worker import TOO_LARGE, TOO_SLOW, Verdict, WorkerStart

log = get_logger("grammar")

WORKER_SECONDS = 60.0
"""Time limit for the start of the worker and one grammar. This is two seconds of work; a very busy
machine needs longer."""
MAX_WAITING = 64
"""Maximum number of requests that wait for the worker. Most grammars take 10 ms."""
MAX_VERDICTS = 512
"""Verdicts that are kept. Eight times as many as compiled grammars, because they are small."""
MAX_VERDICT_CHARACTERS = 1 << 20
"""Characters of their texts together. A schema may have 128 Ki characters of keywords to ignore."""
_DEATHS = {
    "killed by SIGPROF": TOO_SLOW,
    "killed by SIGABRT": TOO_LARGE,
    "killed by SIGSEGV": "cannot be compiled",
}
"""Deaths of the worker that its grammar has caused, and what is wrong with such a grammar."""


Result = TypeVar("Result")


class _Queue:
    """A thread that does one thing after the other, for a limited number of callers."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._num_waiting = 0

    async def run(self, work: Callable[[Grammar], Result], grammar: Grammar) -> Result:
        """Wait for the work. Raises OverloadedError if too many wait."""
        if self._num_waiting >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} grammars wait to be checked; try again later")
        self._num_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, work, grammar)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class GrammarChecker:
    """Lets a worker process try each new grammar; compiles the good ones for the engine.

    The worker is started for the first grammar, and again after a grammar has killed it. Known
    grammars do not wait for new ones.
    """

    def __init__(self, start: WorkerStart, grammars: Grammars) -> None:
        self._start = start
        self._grammars = grammars
        self._trying = _Queue("tokenmill-grammars-trying")
        self._compiling = _Queue("tokenmill-grammars-compiling")
        self._verdicts = LastUsed[bytes, Verdict](
            max_count=MAX_VERDICTS, max_size=MAX_VERDICT_CHARACTERS
        )
        self._child: Child | None = None

    async def check(self, grammar: Grammar) -> tuple[str, ...]:
        """Return the keywords that have no effect in a usable grammar.

        Raises InvalidRequestError for one that cannot be used, OverloadedError if too many wait.
        """
        verdict = self._recall(grammar)
        if verdict is None:
            verdict = await self._trying.run(self._judge, grammar)
        if verdict.error is not None:
            raise _refusal(verdict.error)
        if grammar not in self._grammars:  # compiled now, so that no step has to wait for it
            try:
                await self._compiling.run(self._grammars.compile, grammar)
            except GrammarError as error:
                raise _refusal(str(error)) from error
        return verdict.ignored

    def close(self) -> None:
        """End the worker."""
        self._trying.close()
        self._compiling.close()
        self._end_child()

    def _recall(self, grammar: Grammar) -> Verdict | None:
        return self._verdicts.get(_digest(grammar))

    def _judge(self, grammar: Grammar) -> Verdict:
        """Try a grammar, unless a request that waited before has done so."""
        verdict = self._recall(grammar)
        if verdict is None:
            verdict = self._try(grammar)
            size = len(verdict.error or "") + sum(map(len, verdict.ignored))
            self._verdicts.put(_digest(grammar), verdict, size)
        return verdict

    def _try(self, grammar: Grammar) -> Verdict:
        child = self._living_child()
        try:
            child.sockets[0].settimeout(WORKER_SECONDS)
            send(child.sockets[0], msgspec.msgpack.encode(grammar))
            reply = receive(child.sockets[0], WORKER_SECONDS)
        except (EOFError, OSError, TimeoutError):
            return self._bury(child)
        return msgspec.msgpack.decode(reply, type=Verdict)

    def _living_child(self) -> Child:
        if self._child is None or not self._child.is_alive:
            self._end_child()
            child = self._child = spawn(f"{__package__}.worker:main")
            child.sockets[0].settimeout(WORKER_SECONDS)
            with suppress(OSError):  # `_try` finds out that it died
                send(child.sockets[0], msgspec.msgpack.encode(self._start))
        return self._child

    def _bury(self, child: Child) -> Verdict:
        child.wait(0.5)
        child.kill()
        end = child.describe_end()
        log.warning("grammar_worker_ended", how=end)
        self._child = None
        if end not in _DEATHS:  # perhaps not the grammar's fault, so the verdict is not kept
            raise OverloadedError("the grammar could not be checked; try again later")
        return Verdict(error=_DEATHS[end])

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the grammar {reason}", param="grammar")
