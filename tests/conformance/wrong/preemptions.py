"""Wrong preemption modes."""

from __future__ import annotations

import itertools
from typing import Any

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import PreemptionCandidate, Victim
from tokenmill.testing.conformance.policies import preemption as suite

from . import fails

Candidates = tuple[PreemptionCandidate, ...]
engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class Preemption:
    """A preemption mode that is one function. Right: the last candidate."""

    modes: tuple[str, ...] = ("recompute", "swap")

    @hookimpl
    def preempt(self, step: Any, needy: Any, candidates: Candidates) -> Any:
        return self.answer(step, candidates)

    def answer(self, step: Any, candidates: Candidates) -> Any:
        return last(candidates)


def last(candidates: Candidates, mode: str = "recompute") -> Victim:
    return Victim(request=candidates[-1].request, mode=mode)


@fails(suite.check_it_answers_every_question)
class Raises(Preemption):
    def answer(self, step: Any, candidates: Candidates) -> Any:
        return last(candidates[1:])  # as if there were always two


@fails(suite.check_it_answers_every_question)
class AnswersARequest(Preemption):
    def answer(self, step: Any, candidates: Candidates) -> Any:
        return candidates[-1].request


@fails(suite.check_victims_are_candidates)
class ChoosesTheMostSenior(Preemption):
    def answer(self, step: Any, candidates: Candidates) -> Any:
        return Victim(request=step.running[0])


@fails(suite.check_modes_are_declared)
class AnswersAModeThatItDidNotDeclare(Preemption):
    modes = ("recompute",)

    def answer(self, step: Any, candidates: Candidates) -> Any:
        return last(candidates, "swap")


@fails(suite.check_modes_are_declared)
class AnswersAnUnknownMode(Preemption):
    modes = ("discard",)

    def answer(self, step: Any, candidates: Candidates) -> Any:
        return last(candidates, "discard")


@fails(suite.check_somebody_always_gives_way)
class NobodyGivesWay(Preemption):
    def answer(self, step: Any, candidates: Candidates) -> Any:
        return None


@fails(suite.check_every_request_finishes)
class DropsEachStep(Preemption):
    num_questions = 0

    def answer(self, step: Any, candidates: Candidates) -> Any:
        self.num_questions += 1
        if self.num_questions <= 2:
            return last(candidates)
        step._step.must_drain = True
        return None


@fails(suite.check_tokens_are_the_same_with_and_without_preemption)
class ChangesTheVictim(Preemption):
    def answer(self, step: Any, candidates: Candidates) -> Any:
        request: Any = candidates[-1].request
        request._request.seed += 1
        return last(candidates)


@fails(suite.check_blocks_and_host_blocks_come_back)
class KeepsAHostBlock(Preemption):
    def answer(self, step: Any, candidates: Candidates) -> Any:
        if step._step._host_pool.num_available > 1:
            step._step._host_pool.take()
        return last(candidates, "swap")


@fails(suite.check_it_is_deterministic)
class DiffersFromEngineToEngine(Preemption):
    def __init__(self) -> None:
        self.place = -(next(engine_numbers) % 2)

    def answer(self, step: Any, candidates: Candidates) -> Any:
        return Victim(request=candidates[self.place].request)
