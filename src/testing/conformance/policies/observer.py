"""The suite for observers, which watch the engine, offer metrics, or run with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ....core.contract.events import Stopping
from ....core.host.hook_checks import implemented_hooks, new_manager
from ....core.host.plugin_host import PluginHost
from ..engine.life import live_through
from ..engine.sample_events import SAMPLE_EVENTS
from ..hosting import FailureWatch, load_host, take
from ..kept_memory import describe_growth
from ..reporting import Report, report_growth, report_time
from ..suites import suite

_KIND = "observer"
_CALLS = 20
_MOST_WAITING = 0.001
"""Maximum time, in seconds, that an observer may wait without using the processor."""


def check_it_survives_every_event(observer: object) -> None:
    """The observer raises for no event, whatever fields it has."""
    watch = FailureWatch()
    host = load_host(_KIND, take(observer), watch)
    for events in SAMPLE_EVENTS.values():
        for event in events:
            host.emit(event)
    failures = _failures(host, watch)
    assert not failures, failures


def check_it_never_waits(observer: object) -> None:
    """The observer does not wait in a hook, because the engine stands still meanwhile.

    Waiting for a connection or a slow disk belongs in a task or thread of its own.
    """
    seen = take(observer)
    host = load_host(_KIND, seen)
    for hook in implemented_hooks(new_manager(), seen):
        for event in SAMPLE_EVENTS.get(hook, ()):
            waited = _least_waiting(lambda event=event: host.emit(event))  # type: ignore[misc]
            assert waited < _MOST_WAITING, f"{hook} waits for {waited * 1000:.1f} ms, at every call"
    host.emit(Stopping())


def check_it_lives_through_an_engine(observer: object) -> None:
    """Nothing fails from start to end of an engine that serves, preempts and aborts."""
    watch = FailureWatch()
    host = load_host(_KIND, take(observer), watch)
    asyncio.run(live_through(host))
    failures = _failures(host, watch)
    assert not failures, failures


def check_metrics_are_prometheus_text(observer: object) -> None:
    """Prometheus can read the observer's metrics, before and after events."""
    host = load_host(_KIND, take(observer))
    for events in SAMPLE_EVENTS.values():
        text = host.render_metrics()
        assert not _num_failures(host, "render_metrics"), (
            "render_metrics raised, or did not return bytes"
        )
        list(text_string_to_metric_families(text.decode()))
        for event in events:
            host.emit(event)


def check_memory_growth_is_reported(observer: object, report: Report) -> None:
    """Report whether the observer's memory grows with events. Growth is no failure."""
    seen = take(observer)
    host = load_host(_KIND, seen)

    def live() -> None:
        for hook, events in SAMPLE_EVENTS.items():
            for event in events if hook not in ("on_started", "on_stopping") else ():
                host.emit(event)

    report_growth(report, describe_growth(seen, live))
    host.emit(Stopping())


def check_time_per_event_is_reported(observer: object, report: Report) -> None:
    """Report how long each event takes. There is no limit."""
    seen = take(observer)
    host = load_host(_KIND, seen)
    for hook in implemented_hooks(new_manager(), seen):
        for event in SAMPLE_EVENTS.get(hook, ())[:1]:
            started = time.perf_counter()
            for _ in range(_CALLS):
                host.emit(event)
            report_time(report, hook, (time.perf_counter() - started) / _CALLS)
    host.emit(Stopping())


@suite
class ObserverConformance:
    """The suite for an observer.

    Subclass it as Test..., with a fixture `observer` that returns an observer, or a function that
    makes one. Every test runs in an empty working directory.
    """

    @pytest.fixture(autouse=True)
    def _in_empty_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)


def _least_waiting(call: Callable[[], None]) -> float:
    """Seconds that a call spends off the processor: the minimum of several calls.

    In any one call, the system may take the processor away.
    """
    waited = []
    for _ in range(_CALLS):
        started, computed = time.perf_counter(), time.thread_time()
        call()
        computed = time.thread_time() - computed
        waited.append(time.perf_counter() - started - computed)
    return min(waited)


def _failures(host: PluginHost, watch: FailureWatch) -> str:
    """All failures, without those that are sample events."""
    watch.events = [e for e in watch.events if e not in SAMPLE_EVENTS["on_plugin_failed"]]
    own = _num_failures(host, "on_plugin_failed")  # the engine sends no event about these
    return watch.describe() or (f"on_plugin_failed raised {own} times" if own else "")


def _num_failures(host: PluginHost, hook: str) -> int:
    return sum(stats.failures for stats in host.hook_stats() if stats.hook == hook)
