"""Wrong schedulers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.deciders import decode_first
from tokenmill.core.outputs import FinishReason
from tokenmill.testing import SchedulerConformance

engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class Scheduler:
    """The built-in order, with something wrong around it."""

    def __init__(self, spoil: Callable[[Any, dict[str, Any]], object]) -> None:
        self._spoil = spoil
        self._memory: dict[str, Any] = {}

    @hookimpl
    def schedule(self, step: Any) -> None:
        if not self._spoil(step, self._memory):
            decode_first(step)


def overdraw(step: Any, memory: dict[str, Any]) -> None:
    step._step.budget += 1


def raise_at_times(step: Any, memory: dict[str, Any]) -> None:
    memory["steps"] = memory.get("steps", 0) + 1
    if memory["steps"] % 5 == 0:
        raise ZeroDivisionError("the fifth step")


def idle_at_times(step: Any, memory: dict[str, Any]) -> bool:
    memory["steps"] = memory.get("steps", 0) + 1
    return bool(memory["steps"] % 5 == 0)


def drop_each_step(step: Any, memory: dict[str, Any]) -> None:
    memory["steps"] = memory.get("steps", 0) + 1
    step._step.must_drain = memory["steps"] > 20 and len(step.running) > 4


def wait_for_company(step: Any, memory: dict[str, Any]) -> bool:
    if len(step.running) + len(step.waiting) >= 2:
        return False
    step.wait_until(step.now + 1)
    return True


def last_come_first_served(step: Any, memory: dict[str, Any]) -> bool:
    for request in (*step.running, *(r for r in step.waiting if r.num_preemptions)):
        step.schedule(request)
    for request in reversed(step.waiting):
        step.schedule(request)
    return True


def shortest_first_without_ageing(step: Any, memory: dict[str, Any]) -> bool:
    for request in step.running:
        step.schedule(request)
    for request in sorted(step.waiting, key=lambda r: (not r.num_preemptions, r.num_tokens)):
        step.schedule(request)
    return True


def change_the_prompt(step: Any, memory: dict[str, Any]) -> None:
    for request in step.waiting:
        if not request.num_preemptions:
            tokens = request._request.token_ids
            tokens[0] = 1000 - tokens[0]


def keep_a_block_of_the_aborted(step: Any, memory: dict[str, Any]) -> None:
    seen = memory.setdefault("seen", {})
    seen.update((r.request_id, r) for r in (*step.running, *step.waiting))
    for request_id, request in list(seen.items()):
        if request._request.finish_reason is FinishReason.ABORT and step._step._pool.num_available:
            step._step._pool.take()
            del seen[request_id]


def decide_by_engine(step: Any, memory: dict[str, Any]) -> bool:
    if "number" not in memory:
        memory["number"] = next(engine_numbers)
    if memory["number"] % 2:
        return False
    for request in step.waiting:
        step.schedule(request)
    for request in step.running:
        step.schedule(request)
    return True


class TestOverdraws(SchedulerConformance):
    fails = "test_no_plan_exceeds_the_limits"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(overdraw)


class TestTakesTooManySeats(SchedulerConformance):
    fails = "test_no_plan_exceeds_the_limits"

    @pytest.fixture
    def scheduler(self) -> object:
        def spoil(step: Any, memory: dict[str, Any]) -> None:
            step._step._num_running = 0

        return Scheduler(spoil)


class TestRaises(SchedulerConformance):
    fails = "test_it_decides_every_step_itself"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(raise_at_times)


class TestGrantsNothing(SchedulerConformance):
    fails = "test_it_decides_every_step_itself"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(idle_at_times)


class TestSchedulerDropsEachStep(SchedulerConformance):
    fails = "test_every_request_finishes"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(drop_each_step)


class TestWaitsForCompany(SchedulerConformance):
    fails = "test_it_decides_every_step_itself"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(wait_for_company)


class TestLastComeFirstServed(SchedulerConformance):
    fails = "test_nobody_starves"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(last_come_first_served)


class TestShortestFirstWithoutAgeing(SchedulerConformance):
    fails = "test_nobody_starves"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(shortest_first_without_ageing)


class TestChangesThePrompt(SchedulerConformance):
    fails = "test_tokens_are_exact"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(change_the_prompt)


class TestKeepsBlocksOfTheAborted(SchedulerConformance):
    fails = "test_aborts_give_back_every_block"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(keep_a_block_of_the_aborted)


class TestDiffersFromEngineToEngine(SchedulerConformance):
    fails = "test_it_is_deterministic"

    @pytest.fixture
    def scheduler(self) -> object:
        return Scheduler(decide_by_engine)


class TestWrapperThatRaises(SchedulerConformance):
    fails = "test_it_decides_every_step_itself"

    @pytest.fixture
    def scheduler(self) -> object:
        class Wrapper:
            @hookimpl(wrapper=True)
            def schedule(self, step: Any) -> Any:
                yield
                raise ZeroDivisionError

        return Wrapper
