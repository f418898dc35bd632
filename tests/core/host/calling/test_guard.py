"""The guard of every hook: what counts as a failure, and what is counted for whom."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core import kinds
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import PluginError, RequestFailedError
from tokenmill.core.host.calling import guard
from tokenmill.core.host.calling.failure_log import FailureLog

from ...failures import Failures
from ...hook_stats import stats_of
from ..every_hook import ANY, CALLS, Everything, load

pytestmark = pytest.mark.usefixtures("own_folder")


class Wrapper:
    """Stands around `schedule` and raises before it."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @hookimpl(wrapper=True)
    def schedule(self) -> Any:
        raise self._error
        yield


@pytest.mark.parametrize("hook", CALLS)
def test_a_plugin_that_exits_the_program_only_fails(hook: str) -> None:
    failures = Failures()
    host = load(Everything(hook, SystemExit(3)), failures)
    if hook == "admit":
        with pytest.raises(RequestFailedError):
            CALLS[hook](host)
    else:
        CALLS[hook](host)
    assert [(e.plugin, e.hook, e.error) for e in failures.seen] == [
        ("Everything", hook, "SystemExit: 3")
    ]


def test_a_wrapper_that_exits_the_program_is_dropped() -> None:
    failures = Failures()
    host = load(Everything("", SystemExit()), Wrapper(SystemExit(3)), failures)
    assert [host.schedule(ANY) for _ in range(2)] == [False, True]
    assert [(e.plugin, e.action) for e in failures.seen] == [("Wrapper", "dropped")]


@pytest.mark.parametrize("hook", CALLS)
def test_ctrl_c_is_meant_for_the_program_and_passes_through(hook: str) -> None:
    host = load(Everything(hook, KeyboardInterrupt()))
    marks = [bytearray(1) for _ in host.guards]
    for one, mark in zip(host.guards, marks, strict=True):
        one.mark = mark
    with pytest.raises(KeyboardInterrupt):
        CALLS[hook](host)
    assert stats_of(host, hook).failures == 0
    assert [g.hook for g, m in zip(host.guards, marks, strict=True) if m[0]] == [hook]


def test_a_plugin_that_exits_while_it_is_built_refuses_the_start() -> None:
    class Exiting:
        @hookimpl
        def register(self, registry: Registry) -> None:
            def leave(context: object) -> object:
                raise SystemExit(3)

            registry.offer(kinds.OBSERVER, "exiting", leave)

    with pytest.raises(PluginError, match="'Exiting' could not be built: SystemExit: 3"):
        load(Everything("", SystemExit()), Exiting())


def test_calls_and_failures_are_counted_per_plugin_and_hook() -> None:
    class Quiet:
        @hookimpl
        def on_planned(self) -> None: ...

    host = load(Everything("on_planned", ValueError()), Quiet())
    for _ in range(2):
        for call in CALLS.values():
            call(host)
    found = {(stats.plugin, stats.hook): stats for stats in host.hook_stats()}
    assert {hook: found["Everything", hook].calls for hook in CALLS} == dict.fromkeys(CALLS, 2)
    assert (found["Everything", "on_planned"].failures, found["Quiet", "on_planned"].failures) == (
        2,
        0,
    )
    assert found["Quiet", "on_planned"].calls == 2


def test_a_wrapper_is_timed_without_the_provider_that_it_wraps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(guard, "perf_counter", lambda: clock[0])

    class Inner(Everything):
        def _run(self, hook: str, answer: object = None) -> Any:
            clock[0] += 4.0
            return answer

    class Outer:
        @hookimpl(wrapper=True)
        def schedule(self) -> Any:
            clock[0] += 1.0
            yield
            clock[0] += 2.0

    host = load(Inner("", ValueError()), Outer())
    host.schedule(ANY)
    found = {s.plugin: (s.calls, s.seconds) for s in host.hook_stats() if s.hook == "schedule"}
    assert found == {"Outer": (1, 3.0), "Inner": (1, 4.0)}


def test_a_wrapper_that_makes_an_answer_wrong_is_blamed_itself() -> None:
    class Spoiling:
        @hookimpl(wrapper=True)
        def preempt(self) -> Any:
            yield
            return "nobody"

    failures = Failures()
    host = load(Everything("", ValueError()), Spoiling(), failures)
    CALLS["preempt"](host)
    assert [(e.plugin, e.action) for e in failures.seen] == [("Spoiling", "dropped")]


def test_a_wrapper_that_translates_a_failure_is_not_blamed_for_it() -> None:
    class Translating:
        @hookimpl(wrapper=True)
        def schedule(self) -> Any:
            try:
                return (yield)
            except ValueError as error:
                raise RuntimeError("failed inside") from error

    failures = Failures()
    host = load(Everything("schedule", ValueError("planted")), Translating(), failures)
    host.schedule(ANY)
    assert [(e.plugin, e.action) for e in failures.seen] == [("Everything", "fallback")]


def test_a_call_that_has_returned_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is read, and signals are handled, before the call is complete."""
    seen: list[float] = []
    source = Source(plugin="slow")
    one = guard.Guard(lambda: 7, source, "parse", guard.DECIDES, FailureLog(lambda event: None))

    def clock() -> float:
        seen.append(one.since)
        return 1.0 + len(seen)

    monkeypatch.setattr(guard, "perf_counter", clock)
    assert one() == 7
    assert seen == [0.0, 0.0], "a signal would take it for a running call"
