"""Counters that outlive their engine."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.supervised.counters import SurvivingCounters


def metrics(tokens: int, running: int, *labels: str) -> bytes:
    registry = CollectorRegistry()
    Gauge("t:running", "Requests.", registry=registry).set(running)
    Counter("t:tokens", "Tokens.", registry=registry).inc(tokens)
    seconds = Histogram("t:seconds", "Seconds.", buckets=(1, 2), registry=registry)
    seconds.observe(1.5)
    ends = Counter("t:ends", "Ends.", ["reason", "text"], registry=registry)
    for label in labels:
        ends.labels(label, 'a "}" b').inc(3)
    return generate_latest(registry)


def values(text: bytes) -> dict[str, float]:
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_the_first_engine_is_shown_as_it_is() -> None:
    text = metrics(5, 1, "stop")
    assert SurvivingCounters().render(text) == text


def test_counts_add_up_over_engines_and_gauges_do_not() -> None:
    counters = SurvivingCounters()
    counters.end(metrics(5, 1, "stop"))
    counters.end(metrics(7, 1, "stop", "length"))
    found = values(counters.render(metrics(1, 4, "abort", "stop")))
    one = values(metrics(1, 4, "abort", "stop"))
    assert found["t:running[]"] == 4
    assert found["t:tokens_total[]"] == 13
    assert found["t:seconds_count[]"] == 3
    assert found["t:seconds_sum[]"] == 4.5
    assert [v for k, v in sorted(found.items()) if k.startswith("t:seconds_bucket")] == [3, 0, 3]
    ends = sorted(v for k, v in found.items() if k.startswith("t:ends"))
    assert ends == [3, 3, 9], "abort, length and stop"
    assert set(one) < set(found), "only the end by length is new"


def test_without_an_engine_counters_stay_and_gauges_go() -> None:
    counters = SurvivingCounters()
    counters.end(metrics(5, 1, "stop"))
    found = values(counters.render(b""))
    assert found["t:tokens_total[]"] == 5
    assert "t:running[]" not in found


def test_a_text_without_types_and_with_time_stamps_is_kept() -> None:
    counters = SurvivingCounters()
    counters.end(b"own 3 1700000000\n")
    assert counters.render(b"own 4 1700000001\n") == b"own 4\n"
