"""Checks new grammars before their requests are admitted, small and large ones apart."""

from __future__ import annotations

import hashlib

import msgspec

from ...core.errors import InvalidRequestError, OverloadedError
from ...core.last_used import LastUsed
from ...core.requests.grammar import Grammar
from ...core.shared_work import SharedWork
from .base import CompiledGrammar, GrammarError
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
        too_many = f"{max_waiting} grammars wait to be checked; try again later"
        self.trying = SharedWork[Grammar, Verdict | None](
            "grammars-trying", max_count=max_waiting, too_many=too_many
        )
        self.compiling = SharedWork[Grammar, CompiledGrammar](
            "grammars-compiling", max_count=max_waiting, too_many=too_many
        )
        self._grammars, self._verdicts = grammars, verdicts

    async def try_out(self, grammar: Grammar) -> Verdict | None:
        """The verdict of the worker; None if it ended and says nothing about the grammar."""
        return await self.trying.run(grammar, lambda: self._judge(grammar))

    async def compile(self, grammar: Grammar) -> None:
        """Compile a good grammar, so that no step has to wait for it. Raises GrammarError."""
        await self.compiling.run(grammar, lambda: self._grammars.compile(grammar))

    def _judge(self, grammar: Grammar) -> Verdict | None:
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
        verdict = self._verdicts.get(grammar) or await lane.try_out(grammar)
        if verdict is None:
            raise OverloadedError("the grammar could not be checked; try again later")
        if verdict.error is not None:
            raise _refusal(verdict.error)
        if grammar not in self._grammars:
            try:
                await lane.compile(grammar)
            except GrammarError as error:
                raise _refusal(str(error)) from error
        return verdict.ignored

    def close(self) -> None:
        self.small.close()
        self.large.close()


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(grammar)).digest()


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the grammar {reason}", param="grammar")
