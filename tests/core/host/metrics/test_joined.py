"""Metrics of observers: what Prometheus can read is joined, the rest is refused."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.host.metrics.joined import JoinedMetrics


def test_what_the_official_client_writes_is_joined_as_it_is() -> None:
    registry = CollectorRegistry()
    Counter("asked", 'a "quoted" \\ help', ["who"], registry=registry).labels(
        'a"b\\c\nd,e} 1'
    ).inc()
    Gauge("odd", "", registry=registry).set(float("-inf"))
    Gauge("nothing", "", registry=registry).set(float("nan"))
    Histogram("waited", "seconds", registry=registry).observe(1e-7)
    text = generate_latest(registry)
    joined = JoinedMetrics()
    assert joined.add(text) is None and joined.add(b"# a comment\n\nother{} 1e+06 1700000") is None
    assert joined.render() == text + b"# a comment\n\nother{} 1e+06 1700000\n"
    assert list(text_string_to_metric_families(joined.render().decode()))


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("text", "must return bytes, got 'text'"),
        (b"\xff 1", "must return UTF-8"),
        (b"a 1\nlonely\n", "cannot read: 'lonely'"),
        (b"a one", "cannot read: 'a one'"),
        (b'a{b="c} 1', "cannot read"),
        (b"a{b=c} 1", "cannot read"),
        (b"1a 1", "cannot read"),
        (b"a 1.2.3", "cannot read"),
        (b"# TYPE good counter\ngood 2\n", "returned 'good', which another plugin has already"),
    ],
)
def test_what_would_break_a_scrape_is_refused_and_the_rest_stays(
    bad: object, complaint: str
) -> None:
    joined = JoinedMetrics()
    assert joined.add(b"# TYPE good counter\ngood 1\n") is None
    assert complaint in (joined.add(bad) or "")
    assert joined.add(b"last 1\n") is None
    assert joined.render() == b"# TYPE good counter\ngood 1\nlast 1\n"


def test_a_long_broken_text_is_refused_in_linear_time() -> None:
    """A pattern that tries all ways to divide the labels would never end."""
    assert JoinedMetrics().add(b"a{" + b'b="c",' * 20_000 + b"? 1\n") is not None
    assert JoinedMetrics().add(b'a{b="' + b"\\\\" * 50_000 + b"\n") is not None
