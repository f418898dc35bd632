"""A hook that hangs is logged with plugin and stack, again and again but ever more seldom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.host.calling.watchdog import Watchdog
from tokenmill.core.host.plugin_host import PluginHost

from ..every_hook import ANY, CALLS, CANDIDATES, Everything, load

pytestmark = pytest.mark.usefixtures("own_folder")


class Hanging(Everything):
    """Waits in one hook until it is released."""

    def __init__(self, hook: str) -> None:
        super().__init__("", ValueError())
        self._hanging = hook
        self.is_in, self.release = threading.Event(), threading.Event()

    def _run(self, hook: str, answer: object = None) -> Any:
        if hook == self._hanging:
            self.is_in.set()
            self.wait_for_ever()
        return answer

    def wait_for_ever(self) -> None:
        assert self.release.wait(60)


@contextmanager
def hanging(plugin: Hanging, call: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=call)
    thread.start()
    assert plugin.is_in.wait(60)
    try:
        yield
    finally:
        plugin.release.set()
        thread.join()


def since_of(host: PluginHost, hook: str) -> float:
    [guard] = [guard for guard in host.guards if guard.hook == hook and guard.since]
    return guard.since


def hangs(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.msg == "hook_hangs"]


@pytest.mark.parametrize("hook", CALLS)
def test_a_hook_that_hangs_is_logged_with_plugin_and_stack(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Hanging(hook)
    host = load(plugin)
    watchdog = Watchdog(host.guards, 5.0)
    with hanging(plugin, lambda: CALLS[hook](host)):
        began = since_of(host, hook)
        watchdog.look(began + 4.9)
        assert not hangs(caplog)
        watchdog.look(began + 5.5)
    [found] = hangs(caplog)
    assert (found["plugin"], found["hook"], found["seconds"]) == ("Hanging", hook, 5.5)
    assert "every_hook.py" in found["stack"]
    assert "wait_for_ever" in found["stack"]


def test_it_is_logged_again_each_time_that_its_age_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin = Hanging("schedule")
    host = load(plugin)
    watchdog = Watchdog(host.guards, 1.0)
    with hanging(plugin, lambda: host.schedule(ANY)):
        began = since_of(host, "schedule")
        for quarter in range(4 * 20):
            watchdog.look(began + quarter / 4)
    assert [found["seconds"] for found in hangs(caplog)] == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_another_call_of_the_hook_is_another_wait(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        plugin = Hanging("schedule")
        host = load(plugin)
        watchdog = Watchdog(host.guards, 1.0)
        for _ in range(2):
            plugin.is_in.clear()
            plugin.release.clear()
            with hanging(plugin, lambda: host.schedule(ANY)):  # noqa: B023
                watchdog.look(since_of(host, "schedule") + 1.5)
            watchdog.look(time.perf_counter() + 100)
    assert [found["seconds"] for found in hangs(caplog)] == [1.5] * 4


def test_of_nested_hooks_the_inner_one_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Asking:
        @hookimpl(wrapper=True)
        def schedule(self) -> Any:
            host.preempt(ANY, ANY, CANDIDATES)
            return (yield)

    plugin = Hanging("preempt")
    host = load(plugin, Asking())
    with hanging(plugin, lambda: host.schedule(ANY)):
        Watchdog(host.guards, 1.0).look(time.perf_counter() + 5)
    assert [found["hook"] for found in hangs(caplog)] == ["preempt"]


def test_the_thread_finds_a_hanging_hook_by_itself_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin = Hanging("on_planned")
    host = load(plugin)
    others = set(threading.enumerate())  # engines of other tests have a watchdog, too
    watchdog = Watchdog(host.guards, 0.05)
    watchdog.start()
    try:
        with hanging(plugin, lambda: CALLS["on_planned"](host)):
            for _ in range(600):
                if hangs(caplog):
                    break
                time.sleep(0.05)
        assert hangs(caplog)
    finally:
        watchdog.stop()
    for _ in range(600):
        if "tokenmill-watchdog" not in {t.name for t in set(threading.enumerate()) - others}:
            return
        time.sleep(0.05)
    raise AssertionError("the thread still runs")


def test_nothing_is_watched_where_the_option_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread"))
    Watchdog((), 0.0).start()
