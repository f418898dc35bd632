"""Wrong preemption modes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import PreemptionCandidate, Victim
from tokenmill.testing import PreemptionConformance

Candidates = tuple[PreemptionCandidate, ...]
engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class Preemption:
    """A preemption mode that is one function."""

    modes: tuple[str, ...] = ("recompute", "swap")

    def __init__(self, answer: Callable[[Any, Any, Candidates], Any]) -> None:
        self._answer = answer

    @hookimpl
    def preempt(self, step: Any, needy: Any, candidates: Candidates) -> Any:
        return self._answer(step, needy, candidates)


def last(candidates: Candidates, mode: str = "recompute") -> Victim:
    return Victim(request=candidates[-1].request, mode=mode)


class TestPreemptRaises(PreemptionConformance):
    fails = "test_it_answers_every_question"

    @pytest.fixture
    def preemption_mode(self) -> object:
        def answer(step: Any, needy: Any, candidates: Candidates) -> Any:
            return last(candidates[1:])  # as if there were always two

        return Preemption(answer)


class TestAnswersARequest(PreemptionConformance):
    fails = "test_it_answers_every_question"

    @pytest.fixture
    def preemption_mode(self) -> object:
        return Preemption(lambda step, needy, candidates: candidates[-1].request)


class TestChoosesTheMostSenior(PreemptionConformance):
    fails = "test_victims_are_candidates"

    @pytest.fixture
    def preemption_mode(self) -> object:
        return Preemption(lambda step, needy, candidates: Victim(request=step.running[0]))


class TestAnswersAModeThatItDidNotDeclare(PreemptionConformance):
    fails = "test_modes_are_declared"

    @pytest.fixture
    def preemption_mode(self) -> object:
        mode = Preemption(lambda step, needy, candidates: last(candidates, "swap"))
        mode.modes = ("recompute",)
        return mode


class TestAnswersAnUnknownMode(PreemptionConformance):
    fails = "test_modes_are_declared"

    @pytest.fixture
    def preemption_mode(self) -> object:
        mode = Preemption(lambda step, needy, candidates: last(candidates, "discard"))
        mode.modes = ("discard",)
        return mode


class TestNobodyGivesWay(PreemptionConformance):
    fails = "test_somebody_always_gives_way"

    @pytest.fixture
    def preemption_mode(self) -> object:
        return Preemption(lambda step, needy, candidates: None)


class TestDropsEachStep(PreemptionConformance):
    fails = "test_every_request_finishes"

    @pytest.fixture
    def preemption_mode(self) -> object:
        def make() -> object:
            questions = itertools.count()

            def answer(step: Any, needy: Any, candidates: Candidates) -> Any:
                if next(questions) < 2:
                    return last(candidates)
                step._step.must_drain = True
                return None

            return Preemption(answer)

        return make


class TestPreemptChangesTheVictim(PreemptionConformance):
    fails = "test_tokens_are_the_same_with_and_without_preemption"

    @pytest.fixture
    def preemption_mode(self) -> object:
        def answer(step: Any, needy: Any, candidates: Candidates) -> Any:
            request: Any = candidates[-1].request
            request._request.seed += 1
            return last(candidates)

        return Preemption(answer)


class TestKeepsAHostBlock(PreemptionConformance):
    fails = "test_blocks_and_host_blocks_come_back"

    @pytest.fixture
    def preemption_mode(self) -> object:
        def answer(step: Any, needy: Any, candidates: Candidates) -> Any:
            if step._step._host_pool.num_available > 1:
                step._step._host_pool.take()
            return last(candidates, "swap")

        return Preemption(answer)


class TestPreemptionDiffersFromEngineToEngine(PreemptionConformance):
    fails = "test_it_is_deterministic"

    @pytest.fixture
    def preemption_mode(self) -> object:
        def make() -> object:
            place = -(next(engine_numbers) % 2)
            return Preemption(lambda s, n, candidates: Victim(request=candidates[place].request))

        return make
