"""How the kit takes what it is given, and that it asks all that the engine would ask."""

from __future__ import annotations

import dataclasses
import functools
import threading
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from tokenmill.core.contract.events import FinishedRequest
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.errors import PluginError
from tokenmill.core.host.plugin_host import EVENTS
from tokenmill.core.outputs import FinishReason
from tokenmill.plugins.schedulers.chunked import Chunked
from tokenmill.plugins.schedulers.prefill_first import PrefillFirst
from tokenmill.testing import EngineBench, EngineShape, Job
from tokenmill.testing.conformance.engine.sample_events import SAMPLE_EVENTS
from tokenmill.testing.conformance.hosting import fresh, load_host, take
from tokenmill.testing.conformance.installed import BareHooks, LoadedPlugin, find_plugin

from ..core.plugin_packages import Packages


def test_every_engine_gets_a_provider_of_its_own() -> None:
    """An object is copied; a class, a function or a partial is called."""
    given = Chunked()
    assert type(fresh(given)) is Chunked and fresh(given) is not given
    for factory in (Chunked, lambda: Chunked(), functools.partial(Chunked)):
        assert type(fresh(factory)) is Chunked
    assert take(given) is given


def test_an_object_that_cannot_be_copied_is_refused_with_advice() -> None:
    given = Chunked()
    given.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="let the fixture return a function that makes one"):
        fresh(given)


def test_a_provider_fills_its_slot_and_a_wrapper_stands_around_the_default() -> None:
    calls = []

    class Wrapper:
        @hookimpl(wrapper=True)
        def schedule(self, step: Any) -> Iterator[None]:
            calls.append("wrapper")
            return (yield)

    assert load_host("scheduler", PrefillFirst()).names["scheduler"] == "under-test"
    bench = EngineBench("scheduler", Wrapper, EngineShape())
    bench.run([Job(prompt=(1, 2), max_tokens=2)], turns=5)
    assert list(bench.reasons.values()) == [FinishReason.LENGTH]
    assert calls and not bench.failures.events


def test_an_unmarked_method_is_refused_as_by_the_engine() -> None:
    class Unmarked:
        def schedule(self, step: Any) -> None: ...

    with pytest.raises(PluginError, match="marked with @hookimpl"):
        load_host("scheduler", Unmarked())


def test_the_suites_do_not_depend_on_the_plugins_file_of_the_working_directory(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins.toml").write_text("[plugins]\nenable = ['not-installed']\n")
    monkeypatch.chdir(tmp_path)
    load_host("scheduler", Chunked())
    LoadedPlugin("chunked")


def test_there_are_samples_of_every_event_in_the_order_of_an_engines_life() -> None:
    assert set(SAMPLE_EVENTS) == set(EVENTS.values())
    for event, hook in EVENTS.items():
        assert all(type(sample) is event for sample in SAMPLE_EVENTS[hook])
    assert next(iter(SAMPLE_EVENTS)) == "on_started"
    assert list(SAMPLE_EVENTS)[-1] == "on_stopping"


def test_samples_have_every_finish_reason_and_every_field_that_may_be_missing() -> None:
    finished = [r for e in SAMPLE_EVENTS["on_finished"] for r in typing.cast(Any, e).requests]
    assert {request.finish_reason for request in finished} == set(FinishReason)
    for name, hint in typing.get_type_hints(FinishedRequest).items():
        if isinstance(hint, types.UnionType):
            values = {getattr(request, name) for request in finished}
            assert None in values and len(values) > 1, name
    assert len(dataclasses.fields(FinishedRequest)) == 18, "then the samples need the new field"


PLUGIN = """
from dataclasses import dataclass

@dataclass
class Options:
    size: int
    step: int = 2

class Observer:
    def __init__(self, context, options):
        self.options = options

    @hookimpl
    def on_step(self, event):
        pass

    @hookimpl(wrapper=True)
    def schedule(self, step):
        return (yield)

@hookimpl
def on_finished(event):
    pass

@hookimpl
def admit(request, load):
    pass

@hookimpl
def register(registry):
    registry.offer(kinds.OBSERVER, "watcher", Observer, options=Options)
"""


def test_all_that_a_plugin_brings_is_put_to_the_suite_of_its_kind(packages: Packages) -> None:
    """What it registers, what else that does, and the hooks of the module itself."""
    packages.install("acme-watch", PLUGIN)
    subjects = LoadedPlugin("acme_watch").subjects()
    assert [(s.kind, s.name) for s in subjects] == [
        ("observer", "watcher"),
        ("scheduler", "watcher"),
        ("admission", "acme-watch"),
        ("observer", "acme-watch"),
    ]
    bare = subjects[-1].make()
    assert isinstance(bare, BareHooks) and not hasattr(bare, "register")


def test_options_come_from_the_plugins_file_that_was_named(packages: Packages) -> None:
    packages.install("acme-watch", PLUGIN)
    with pytest.raises(PluginError, match="needs the option 'size'"):
        LoadedPlugin("acme-watch").subjects()[0].make()
    file = packages.write_settings("[observer.watcher]\nsize = 7\n")
    built: Any = LoadedPlugin("acme-watch", file).subjects()[0].make()
    assert (built.options.size, built.options.step) == (7, 2)


def test_an_unknown_plugin_is_refused_with_the_names_that_are_known() -> None:
    with pytest.raises(PluginError, match="Did you mean 'chunked'"):
        find_plugin("chunkd")
