"""The metrics that a plugin makes itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.metrics import PluginMetrics
from tokenmill.core.contract.registry import PluginContext, Registry
from tokenmill.core.errors import PluginError
from tokenmill.core.host.plugin_host import PluginHost

from ..failures import Failures

pytestmark = pytest.mark.usefixtures("own_folder")


class Watching:
    """Offers an observer that only makes metrics."""

    def __init__(self, make: Callable[[PluginMetrics], object]) -> None:
        self._make = make
        self._name = type(self).__name__.lower()

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.OBSERVER, self._name, self._build)

    def _build(self, context: PluginContext) -> object:
        self._make(context.metrics)
        return None


def samples(text: bytes) -> dict[str, float]:
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counters_gauges_and_histograms_are_shown_under_the_name_of_the_plugin() -> None:
    def make(metrics: PluginMetrics) -> None:
        metrics.counter("lines", "Lines.", ["kind"]).labels('a "b"\n').inc(2)
        metrics.gauge("open", "Open files.").set(-1)
        metrics.histogram("wait_seconds", "Waits.", (0.1, 1.0)).observe(0.5)

    host = PluginHost.load(EngineConfig(metrics_prefix="mill:"), extra=[Watching(make)])
    assert samples(host.render_metrics()) == {
        'mill:Watching_lines_total[a "b"\n]': 2,
        "mill:Watching_open": -1,
        "mill:Watching_wait_seconds_bucket[0.1]": 0,
        "mill:Watching_wait_seconds_bucket[1.0]": 1,
        "mill:Watching_wait_seconds_bucket[+Inf]": 1,
        "mill:Watching_wait_seconds_count": 1,
        "mill:Watching_wait_seconds_sum": 0.5,
    }


def test_a_plugin_without_metrics_shows_nothing() -> None:
    host = PluginHost.load(EngineConfig(), extra=[Watching(lambda metrics: None)])
    assert host.render_metrics() == b""


@pytest.mark.parametrize("name", ["no spaces", "twice"])
def test_a_wrong_name_ends_the_start_and_names_the_plugin(name: str) -> None:
    def make(metrics: PluginMetrics) -> None:
        metrics.gauge("twice", "Once.")
        metrics.gauge(name, "Again.")

    with pytest.raises(PluginError, match="Watching"):
        PluginHost.load(EngineConfig(), extra=[Watching(make)])


def test_a_gauge_that_raises_costs_only_the_metrics_of_its_plugin() -> None:
    def raising(metrics: PluginMetrics) -> None:
        metrics.gauge("bad", "Raises.").set_function(lambda: 1 / 0)

    class Other(Watching):
        pass

    failures = Failures()
    other = Other(lambda metrics: metrics.gauge("good", "Works.").set(3))
    host = PluginHost.load(EngineConfig(), extra=[Watching(raising), other, failures])
    assert samples(host.render_metrics()) == {"tokenmill:Other_good": 3}
    assert [(one.plugin, one.action) for one in failures.seen] == [("Watching", "contained")]
