"""Events through the host: who is told, in which order, and what a failing observer costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Planned, PluginFailed, Stopping
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.host.calling import guard
from tokenmill.core.host.plugin_host import EVENTS, PluginHost

from ..failures import Failures
from ..hook_stats import stats_of

pytestmark = pytest.mark.usefixtures("own_folder")

PLANNED = Planned(step_id=1, num_requests=2, num_tokens=3)


class Observer:
    """Calls a function on plans, and keeps what it hears of failures."""

    def __init__(self, tell: Callable[[Planned], object]) -> None:
        self.tell = tell

    @hookimpl
    def on_planned(self, event: Planned) -> None:
        self.tell(event)


def fail(*_: object) -> None:
    raise ValueError("planted")


def load(*extra: object) -> PluginHost:
    return PluginHost.load(EngineConfig(), extra=extra)


def test_every_event_class_has_its_hook() -> None:
    host = load()
    for event in EVENTS:
        host.observes(event)
    assert list(EVENTS.values()) == [h for h in EVENTS.values() if h.startswith("on_")]


def test_unobserved_events_need_not_be_built() -> None:
    assert not load().observes(Planned)
    host = load(Observer(print))
    assert host.observes(Planned)
    assert not host.observes(Stopping)


def test_observers_are_told_last_enabled_first() -> None:
    seen: list[str] = []
    host = load(Observer(lambda e: seen.append("a")), Observer(lambda e: seen.append("b")))
    host.emit(PLANNED)
    assert seen == ["b", "a"]
    assert stats_of(host, "on_planned").calls == 2


def test_an_observer_that_fails_is_cut_off_after_three_and_nobody_else() -> None:
    seen: list[Planned] = []
    failing: list[Planned] = []

    def tell(event: Planned) -> None:
        failing.append(event)
        fail()

    failures = Failures()
    host = load(Observer(tell), Observer(seen.append), failures)
    for _ in range(5):
        host.emit(PLANNED)
    assert (len(failing), len(seen)) == (3, 5)
    assert [(e.plugin, e.hook, e.action, e.count) for e in failures.seen] == [
        ("Observer", "on_planned", "contained", 1),
        ("Observer", "on_planned", "contained", 2),
        ("Observer", "on_planned", "dropped", 3),
    ]
    states = {info.name: info.state for info in host.plugins()}
    assert (states["Observer"], states["Observer-2"]) == ("failed", "enabled")


def test_an_event_is_unobserved_again_once_its_last_observer_is_cut_off() -> None:
    host = load(Observer(fail))
    for _ in range(3):
        assert host.observes(Planned)
        host.emit(PLANNED)
    assert not host.observes(Planned)


def test_an_observer_of_failures_that_fails_does_not_call_itself() -> None:
    class Clumsy:
        calls = 0

        @hookimpl
        def on_planned(self) -> None:
            fail()

        @hookimpl
        def on_plugin_failed(self, event: PluginFailed) -> None:
            self.calls += 1
            fail()

    clumsy = Clumsy()
    host = load(clumsy)
    for _ in range(10):
        host.emit(PLANNED)
    assert clumsy.calls == 3
    assert next(i for i in host.plugins() if i.name == "Clumsy").failures == 6


def test_failures_are_logged_at_1_10_100_with_plugin_and_distribution(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = iter(range(100))

    class Metrics:
        @hookimpl
        def on_planned(self) -> None:
            fail()

        @hookimpl
        def on_stopping(self) -> None:
            if next(turns) < 2:
                fail()

    host = load(Metrics())
    for _ in range(4):
        host.emit(PLANNED)
        host.emit(Stopping())
    logged = [vars(r) for r in caplog.records if r.msg == "plugin_failed"]
    assert [(r["hook"], r["count"]) for r in logged] == [("on_planned", 1), ("on_stopping", 1)]
    assert logged[0]["plugin"] == "Metrics"
    assert logged[0]["distribution"] == "-"


def test_metrics_of_all_observers_are_joined_line_by_line() -> None:
    class Metrics:
        def __init__(self, text: object) -> None:
            self.text = text

        @hookimpl
        def render_metrics(self) -> object:
            if self.text == "fail":
                fail()
            return self.text

    failures = Failures()
    host = load(Metrics(b"b 1"), Metrics("fail"), Metrics("text"), Metrics(b"a 1\n"), failures)
    for _ in range(4):
        assert host.render_metrics() == b"a 1\nb 1\n"
    assert len(failures.seen) == 6


def test_slow_observers_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "SLOW_SECONDS", -1.0)
    host = load(Observer(lambda event: None))
    host.emit(PLANNED)
    slow = [vars(r) for r in caplog.records if r.msg == "hook_slow"]
    assert [(r["hook"], r["plugin"]) for r in slow] == [("on_planned", "Observer")]
