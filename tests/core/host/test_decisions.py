"""Decisions through the host: who is asked, who is blamed, and what happens instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import PreemptionCandidate, Refusal, Victim
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import RequestFailedError
from tokenmill.core.host.calling import guard
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.request_options import NO_OPTIONS

from ..failures import Failures
from ..hook_stats import stats_of

pytestmark = pytest.mark.usefixtures("own_folder")

ANY = cast(Any, object())
Behaviour = Callable[..., Any]


class Request:
    """Only what the host itself looks at."""

    def __init__(self, request_id: str, arrival_time: float = 0.0) -> None:
        self.request_id = request_id
        self.arrival_time = arrival_time
        self.options = NO_OPTIONS
        self.view = self


class Deciding:
    """A plugin whose scheduler, preemption mode and order are plain functions."""

    def __init__(
        self,
        schedule: Behaviour = lambda step: None,
        preempt: Behaviour = lambda candidates: None,
        key: Behaviour = lambda request, now: (0.0,),
    ) -> None:
        self.schedule, self.preempt, self.key = schedule, preempt, key

    @hookimpl
    def register(self, registry: Registry) -> None:
        deciding = self

        class Scheduler:
            @hookimpl
            def schedule(self, step: Any) -> object:
                return deciding.schedule(step)

        class Mode:
            modes: tuple[str, ...] = ("recompute", "swap")

            @hookimpl
            def preempt(self, step: Any, needy: Any, candidates: Any) -> Any:
                return deciding.preempt(candidates)

        class Order:
            uses_priority = False

            def key(self, request: Any, now: float) -> Any:
                return deciding.key(request, now)

        registry.offer(kinds.SCHEDULER, "mine", Scheduler)
        registry.offer(kinds.PREEMPTION_MODE, "mine", Mode)
        registry.offer(kinds.SCHEDULING_POLICY, "mine", Order)


class Wrapper:
    """A wrapper around both decisions, one generator function for them."""

    def __init__(self, around: Callable[[], Iterator[None]]) -> None:
        self.around = around

    @hookimpl(wrapper=True)
    def schedule(self) -> Any:
        return (yield from self.around())


def load(*plugins: object) -> tuple[PluginHost, Failures]:
    failures = Failures()
    config = EngineConfig(scheduler="mine", preemption_mode="mine", scheduling_policy="mine")
    return PluginHost.load(config, extra=[*plugins, failures]), failures


def fail(*_: object) -> Any:
    raise ValueError("planted")


def schedule_of(host: PluginHost) -> list[bool]:
    return [host.schedule(ANY) for _ in range(5)]


def test_a_scheduler_is_asked_once_per_step() -> None:
    steps: list[object] = []
    host, failures = load(Deciding(schedule=steps.append))
    assert host.schedule(ANY) is True
    assert steps == [ANY]
    assert stats_of(host, "schedule").calls == 1
    assert failures.seen == []


def test_a_scheduler_that_keeps_failing_is_taken_out_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[object] = []

    def schedule(step: object) -> None:
        steps.append(step)
        fail()

    host, failures = load(Deciding(schedule=schedule))
    assert schedule_of(host) == [False] * 5
    assert len(steps) == 3
    assert [(e.plugin, e.hook, e.action, e.count) for e in failures.seen] == [
        ("Deciding", "schedule", "fallback", count) for count in (1, 2, 3)
    ]
    assert failures.seen[0].error == "ValueError: planted"
    taken_out = [r for r in caplog.records if r.msg == "plugin_taken_out"]
    assert [vars(r)["plugin"] for r in taken_out] == ["Deciding"]
    info = next(info for info in host.plugins() if info.name == "Deciding")
    assert (info.state, info.failures) == ("failed", 3)
    assert stats_of(host, "schedule").failures == 3


def test_a_scheduler_that_fails_in_every_second_step_is_taken_out() -> None:
    turns = iter([fail, lambda step: None] * 4)
    host, failures = load(Deciding(schedule=lambda step: next(turns)(step)))
    assert [host.schedule(ANY) for _ in range(8)] == [False, True, False, True] + [False] * 4
    assert len(failures.seen) == 3


def test_failures_among_many_good_steps_leave_a_scheduler_in() -> None:
    turns = iter([fail, fail, *[lambda step: None] * 8] * 4)
    host, failures = load(Deciding(schedule=lambda step: next(turns)(step)))
    assert [host.schedule(ANY) for _ in range(40)] == ([False] * 2 + [True] * 8) * 4
    assert len(failures.seen) == 8


def test_useless_steps_count_like_exceptions() -> None:
    host, failures = load(Deciding())
    for _ in range(3):
        assert host.schedule(ANY) is True
        host.reject_schedule("granted nothing although something could run")
    assert host.schedule(ANY) is False
    assert failures.seen[-1].error == "granted nothing although something could run"


def test_a_wrapper_runs_around_the_provider() -> None:
    order: list[str] = []

    def around() -> Any:
        order.append("before")
        result = yield
        order.append("after")
        return result

    host, _ = load(Deciding(schedule=lambda step: order.append("provider")), Wrapper(around))
    assert host.schedule(ANY)
    assert order == ["before", "provider", "after"]


def before() -> Any:
    fail()
    yield


def after() -> Any:
    yield
    fail()


def twice() -> Any:
    yield
    yield


def never() -> Any:
    return iter(())


@pytest.mark.parametrize("around", [before, after, twice, never])
def test_a_wrapper_that_fails_is_dropped_and_not_its_provider(around: Behaviour) -> None:
    steps: list[object] = []
    host, failures = load(Deciding(schedule=steps.append), Wrapper(around))
    assert schedule_of(host) == [False, True, True, True, True]
    assert [(e.plugin, e.action) for e in failures.seen] == [("Wrapper", "dropped")]
    states = {info.name: info.state for info in host.plugins()}
    assert (states["Wrapper"], states["Deciding"]) == ("failed", "enabled")


def test_a_provider_that_fails_inside_a_wrapper_is_blamed_itself() -> None:
    def around() -> Any:
        try:
            return (yield)
        finally:
            pass

    host, failures = load(Deciding(schedule=fail), Wrapper(around))
    host.schedule(ANY)
    assert [(e.plugin, e.action) for e in failures.seen] == [("Deciding", "fallback")]


def test_of_two_wrappers_of_one_class_the_guilty_one_is_dropped() -> None:
    order: list[str] = []

    def good() -> Any:
        order.append("good")
        return (yield)

    for guilty_first in (True, False):
        order.clear()
        wrappers = [Wrapper(before), Wrapper(good)]
        host, _ = load(Deciding(), *(wrappers if guilty_first else reversed(wrappers)))
        assert schedule_of(host) == [False, True, True, True, True]
        assert order.count("good") >= 4


def test_an_exception_that_a_wrapper_swallows_is_no_failure() -> None:
    def around() -> Any:
        try:
            return (yield)
        except ValueError:
            return None

    host, failures = load(Deciding(schedule=fail), Wrapper(around))
    assert schedule_of(host) == [True] * 5
    assert failures.seen == []


CANDIDATES = tuple(
    PreemptionCandidate(request=cast(Any, Request(name)), num_freed_blocks=1, is_needy=False)
    for name in "abc"
)


def preempt(host: PluginHost) -> Victim | None:
    return host.preempt(ANY, ANY, CANDIDATES)


def test_the_victim_is_the_one_that_was_chosen() -> None:
    host, _ = load(Deciding(preempt=lambda candidates: Victim(request=candidates[0].request)))
    victim = preempt(host)
    assert victim is not None and victim.request is CANDIDATES[0].request
    host, _ = load(Deciding(preempt=lambda candidates: None))
    assert preempt(host) is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (fail, "ValueError: planted"),
        (lambda candidates: candidates[0], "must be None or a Victim"),
        (lambda candidates: Victim(request=cast(Any, Request("d"))), "chose 'd', which is not"),
        (
            lambda candidates: Victim(request=candidates[0].request, mode="swop"),
            "unknown mode 'swop'. Known: recompute, swap",
        ),
    ],
)
def test_for_a_wrong_victim_the_last_candidate_goes(answer: Behaviour, error: str) -> None:
    asked: list[object] = []

    def choose(candidates: Any) -> Any:
        asked.append(candidates)
        return answer(candidates)

    host, failures = load(Deciding(preempt=choose))
    expected = Victim(request=CANDIDATES[-1].request, mode="recompute")
    assert [preempt(host) for _ in range(5)] == [expected] * 5
    assert len(asked) == len(failures.seen) == 3
    assert error in failures.seen[0].error


def test_waiting_requests_go_in_the_order_of_the_policy() -> None:
    requests: Any = [Request("a", 1.0), Request("b", 2.0), Request("c", 3.0)]
    host, _ = load(Deciding(key=lambda request, now: (now - request.arrival_time,)))
    assert [r.request_id for r in host.sort_waiting(requests, 4.0)] == ["c", "b", "a"]


@pytest.mark.parametrize(
    "key", [fail, lambda request, now: (request.request_id, 1.0)[request.arrival_time > 1 :]]
)
def test_requests_go_by_arrival_when_their_keys_fail(key: Behaviour) -> None:
    requests: Any = [Request("b", 2.0), Request("a", 1.0)]
    host, failures = load(Deciding(key=key))
    for _ in range(5):
        assert [r.request_id for r in host.sort_waiting(requests, 4.0)] == ["a", "b"]
    assert [(e.hook, e.action) for e in failures.seen] == [("scheduling_policy", "fallback")] * 3


class Doorkeeper:
    """Refuses, admits or fails, as its function says."""

    def __init__(self, answer: Behaviour) -> None:
        self.answer = answer

    @hookimpl
    def admit(self, request: Any) -> Any:
        return self.answer(request)


def test_the_first_refusal_counts() -> None:
    refusal = Refusal(reason="not today", retry_after=5.0)
    host, _ = load(
        Deciding(), Doorkeeper(lambda request: refusal), Doorkeeper(lambda request: None)
    )
    assert host.admit(cast(Any, Request("a")), ANY) is refusal
    host, _ = load(Deciding(), Doorkeeper(lambda request: None))
    assert host.admit(cast(Any, Request("a")), ANY) is None


@pytest.mark.parametrize("answer", [fail, lambda request: True])
def test_a_doorkeeper_that_fails_costs_only_that_request(answer: Behaviour) -> None:
    host, failures = load(Deciding(), Doorkeeper(answer))
    for count in range(1, 6):
        with pytest.raises(RequestFailedError):
            host.admit(cast(Any, Request("a")), ANY)
        assert failures.seen[-1].action == "request failed"
        assert len(failures.seen) == count


def test_of_several_doorkeepers_the_one_that_raised_is_blamed() -> None:
    host, failures = load(Deciding(), Doorkeeper(fail), Doorkeeper(lambda request: None))
    with pytest.raises(RequestFailedError, match="plugin 'Doorkeeper' failed"):
        host.admit(cast(Any, Request("a")), ANY)
    host, failures = load(
        Deciding(), Doorkeeper(lambda request: True), Doorkeeper(lambda request: None)
    )
    with pytest.raises(RequestFailedError):
        host.admit(cast(Any, Request("a")), ANY)
    assert failures.seen[0].plugin == "Doorkeeper"
    assert stats_of(host, "admit").failures == 1


def test_slow_hooks_are_warned_about_at_1_10_100(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "SLOW_SECONDS", -1.0)
    host, _ = load(Deciding())
    for _ in range(12):
        host.schedule(ANY)
    slow = [vars(r) for r in caplog.records if r.msg == "hook_slow"]
    assert [(r["hook"], r["plugin"], r["count"]) for r in slow] == [
        ("schedule", "Deciding", 1),
        ("schedule", "Deciding", 10),
    ]
    assert stats_of(host, "schedule").slow == 12
