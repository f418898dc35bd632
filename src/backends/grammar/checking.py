"""Checks new grammars before their requests are admitted, small and large ones apart."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ...core.errors import InvalidRequestError, OverloadedError
from ...core.last_used import LastUsed
from ...core.requests.grammar import Grammar
from .base import GrammarError
from .grammars import MAX_COMPILED, Grammars
from .trying import Trial
from .worker import Verdict, WorkerStart

SMALL = 1 << 12
"""Characters of a grammar that counts as small. With llguidance, such grammars take at most 0.1 s.
Only larger ones take up to a second: a schema of 3,000 optional properties takes 0.5 s."""
MAX_WAITING = MAX_COMPILED
"""Maximum number of small grammars that wait for the worker, and that wait to be compiled. Most
take 10 ms. All of them are still kept when their requests begin."""
MAX_LARGE_WAITING = 64
"""The same of large grammars. They wait 90 s for each other if each takes its whole second."""
MAX_VERDICTS = 512
"""Number of verdicts that are kept: twice that of compiled grammars, because they are small."""
MAX_VERDICT_CHARACTERS = 1 << 20
"""Characters of their texts together. A schema may have 128 Ki characters of keywords to ignore."""


Result = TypeVar("Result")


@dataclass(slots=True)
class _Shared(Generic[Result]):
    """Work on one grammar, for all requests that have it."""

    future: Future[Result]
    num_callers: int = 0


class _Queue(Generic[Result]):
    """A thread that works on one grammar after the other. Requests with the same grammar share the
    work."""

    def __init__(self, name: str, work: Callable[[Grammar], Result], max_waiting: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"tokenmill-grammars-{name}")
        self._work = work
        self._max_waiting = max_waiting
        self._open: dict[Grammar, _Shared[Result]] = {}

    async def run(self, grammar: Grammar) -> Result:
        """Wait for the work. Raises OverloadedError if too many other grammars wait."""
        shared = self._open.get(grammar)
        if shared is None:
            most = self._max_waiting
            if len(self._open) >= most:
                raise OverloadedError(f"{most} grammars wait to be checked; try again later")
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


class _Verdicts:
    """The verdicts that were used last. Safe on several threads."""

    def __init__(self) -> None:
        self._kept = LastUsed[bytes, Verdict](
            max_count=MAX_VERDICTS, max_size=MAX_VERDICT_CHARACTERS
        )

    def get(self, grammar: Grammar) -> Verdict | None:
        return self._kept.get(_digest(grammar))

    def put(self, grammar: Grammar, verdict: Verdict) -> None:
        size = len(verdict.error or "") + sum(map(len, verdict.ignored))
        self._kept.put(_digest(grammar), verdict, size)


class Lane:
    """Tries new grammars one after the other, and compiles the good ones for the engine."""

    def __init__(
        self, start: WorkerStart, grammars: Grammars, verdicts: _Verdicts, *, max_waiting: int
    ) -> None:
        self.trial = Trial(start)
        self.trying = _Queue("trying", self._judge, max_waiting)
        self.compiling = _Queue("compiling", grammars.compile, max_waiting)
        self._verdicts = verdicts

    def _judge(self, grammar: Grammar) -> Verdict | None:
        """Try a grammar, and keep the verdict. None if the worker's end says nothing about it."""
        if (known := self._verdicts.get(grammar)) is not None:  # a caller that has left asked
            return known
        verdict = self.trial.judge(grammar)
        if verdict is not None:
            self._verdicts.put(grammar, verdict)
        return verdict

    def close(self) -> None:
        self.trying.close()
        self.compiling.close()
        self.trial.close()


class GrammarChecker:
    """Lets a worker process try each new grammar; compiles the good ones for the engine.

    Known grammars do not wait for new ones, and small grammars do not wait for large ones: these
    have another worker process, which starts with the first of them.
    """

    def __init__(self, start: WorkerStart, grammars: Grammars) -> None:
        self._grammars = grammars
        self._verdicts = _Verdicts()
        self.small = Lane(start, grammars, self._verdicts, max_waiting=MAX_WAITING)
        self.large = Lane(start, grammars, self._verdicts, max_waiting=MAX_LARGE_WAITING)

    def prepare(self) -> None:
        """See core's GrammarChecker."""
        self.small.trying.thread.submit(self.small.trial.prepare)
        self.small.compiling.thread.submit(self._grammars.prepare)

    async def check(self, grammar: Grammar) -> tuple[str, ...]:
        """Return the keywords that have no effect in a usable grammar.

        Raises InvalidRequestError for one that cannot be used, OverloadedError if too many wait.
        """
        lane = self.small if grammar.num_characters <= SMALL else self.large
        verdict = self._verdicts.get(grammar) or await lane.trying.run(grammar)
        if verdict is None:
            raise OverloadedError("the grammar could not be checked; try again later")
        if verdict.error is not None:
            raise _refusal(verdict.error)
        if grammar not in self._grammars:  # compiled now, so that no step has to wait for it
            try:
                await lane.compiling.run(grammar)
            except GrammarError as error:
                raise _refusal(str(error)) from error
        return verdict.ignored

    def close(self) -> None:
        """End the workers."""
        self.small.close()
        self.large.close()


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the grammar {reason}", param="grammar")
