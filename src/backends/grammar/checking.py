"""Checks grammars before their requests are admitted, in a process that a bad grammar may end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ...core.errors import InvalidRequestError, OverloadedError
from ...core.grammar import Grammar
from ...core.log import get_logger
from ...core.processes.child import Child, spawn
from ...core.processes.frames import receive, send
from .base import GrammarError
from .grammars import MAX_COMPILED, Grammars
from .keeping import LastUsed
from .worker import TOO_LARGE, TOO_SLOW, Verdict, WorkerStart

log = get_logger("grammar")

WORKER_SECONDS = 60.0
"""Time limit for the start of the worker and one grammar. This is two seconds of work; a very busy
machine needs longer."""
MAX_WAITING = MAX_COMPILED
"""Maximum number of grammars that wait for the worker, and that wait to be compiled. Most take 10
ms. All of them are still kept when their requests begin."""
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


@dataclass(slots=True)
class _Shared(Generic[Result]):
    """Work on one grammar, for all requests that have it."""

    future: Future[Result]
    num_callers: int = 0


class _Queue(Generic[Result]):
    """A thread that works on one grammar after the other. Requests with the same grammar share the
    work."""

    def __init__(self, name: str, work: Callable[[Grammar], Result]) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._work = work
        self._open: dict[Grammar, _Shared[Result]] = {}

    async def run(self, grammar: Grammar) -> Result:
        """Wait for the work. Raises OverloadedError if too many other grammars wait."""
        shared = self._open.get(grammar)
        if shared is None:
            if len(self._open) >= MAX_WAITING:
                raise OverloadedError(f"{MAX_WAITING} grammars wait to be checked; try again later")
            shared = self._open[grammar] = _Shared(self.thread.submit(self._work, grammar))
        shared.num_callers += 1
        try:
            # A caller that is cancelled must not cancel the work of the others.
            return await asyncio.shield(asyncio.wrap_future(shared.future))
        finally:
            shared.num_callers -= 1
            if not shared.num_callers:
                del self._open[grammar]
                shared.future.cancel()

    def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)


class GrammarChecker:
    """Lets a worker process try each new grammar; compiles the good ones for the engine.

    The worker is started by `prepare` or for the first grammar, and again after a grammar has
    killed it. Known grammars do not wait for new ones.
    """

    def __init__(self, start: WorkerStart, grammars: Grammars) -> None:
        self._start = start
        self._grammars = grammars
        self._trying = _Queue("tokenmill-grammars-trying", self._judge)
        self._compiling = _Queue("tokenmill-grammars-compiling", grammars.compile)
        self._verdicts = LastUsed[bytes, Verdict](
            max_count=MAX_VERDICTS, max_size=MAX_VERDICT_CHARACTERS
        )
        self._child: Child | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """See core's GrammarChecker. What fails here is tried again for the first grammar."""
        self._trying.thread.submit(self._living_child)
        self._compiling.thread.submit(self._grammars.prepare)

    async def check(self, grammar: Grammar) -> tuple[str, ...]:
        """Return the keywords that have no effect in a usable grammar.

        Raises InvalidRequestError for one that cannot be used, OverloadedError if too many wait.
        """
        verdict = self._recall(grammar) or await self._trying.run(grammar)
        if verdict is None:
            raise OverloadedError("the grammar could not be checked; try again later")
        if verdict.error is not None:
            raise _refusal(verdict.error)
        if grammar not in self._grammars:  # compiled now, so that no step has to wait for it
            try:
                await self._compiling.run(grammar)
            except GrammarError as error:
                raise _refusal(str(error)) from error
        return verdict.ignored

    def close(self) -> None:
        """End the worker."""
        self._is_closed = True
        self._trying.close()
        self._compiling.close()
        self._end_child()

    def _recall(self, grammar: Grammar) -> Verdict | None:
        return self._verdicts.get(_digest(grammar))

    def _judge(self, grammar: Grammar) -> Verdict | None:
        """Try a grammar, and keep the verdict. None if the worker's end says nothing about it."""
        if (known := self._recall(grammar)) is not None:  # a caller that has left asked for it
            return known
        verdict = self._try(grammar)
        if verdict is not None:
            size = len(verdict.error or "") + sum(map(len, verdict.ignored))
            self._verdicts.put(_digest(grammar), verdict, size)
        return verdict

    def _try(self, grammar: Grammar) -> Verdict | None:
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
            if self._is_closed:  # meanwhile
                child.kill()
            return child
        return self._child

    def _bury(self, child: Child) -> Verdict | None:
        child.wait(0.5)
        child.kill()
        end = child.describe_end()
        log.warning("grammar_worker_ended", how=end)
        self._child = None
        return Verdict(error=_DEATHS[end]) if end in _DEATHS else None

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the grammar {reason}", param="grammar")
