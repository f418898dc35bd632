"""Metrics of a plugin: prometheus-client's counters, gauges and histograms, under a prefix of the
plugin."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


class PluginMetrics:
    """Makes the metrics of one plugin, which GET /metrics shows.

    A metric's name begins with the server's --metrics-prefix and the plugin's name. Make metrics in
    the factory: a wrong name, or one that the plugin has already, is a ValueError there and ends
    the start. `labels` are names; with them, count by `metric.labels(value).inc()`.
    """

    def __init__(self, prefix: str = "plugin_") -> None:
        """`prefix`: what all names begin with."""
        self._prefix = prefix
        self._registry: CollectorRegistry | None = None

    # prometheus-client is imported with the first metric, because it takes 2 MB.

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows: `counter.inc()`. `_total` is added to its name."""
        from prometheus_client import Counter

        return Counter(self._name(name), help, labels, registry=self._own_registry())

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that also decreases: `gauge.set(3)`, `gauge.inc()`, `gauge.dec()`."""
        from prometheus_client import Gauge

        return Gauge(self._name(name), help, labels, registry=self._own_registry())

    def histogram(
        self, name: str, help: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        """Counts of values by bucket: `histogram.observe(0.2)`. `buckets` are upper bounds."""
        from prometheus_client import Histogram

        return Histogram(
            self._name(name), help, labels, buckets=buckets, registry=self._own_registry()
        )

    def render(self) -> bytes:
        """All metrics in Prometheus's text format; empty if there are none."""
        if self._registry is None:
            return b""
        from prometheus_client import generate_latest

        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The families without the times at which they were made, which no one asked for."""
        assert self._registry is not None
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family

    def _name(self, name: str) -> str:
        if _NAME.fullmatch(name) is None:  # the library takes more than older Prometheus does
            raise ValueError(f"{name!r} is not the name of a metric: use letters, digits and _")
        return self._prefix + name

    def _own_registry(self) -> CollectorRegistry:
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry()
        return self._registry


def metrics_prefix(server_prefix: str, plugin: str) -> str:
    """The prefix of a plugin's metrics: "vllm:" and "my-plugin" make "vllm:my_plugin_"."""
    return f"{server_prefix}{plugin.replace('-', '_')}_"
