"""The metrics of several engines as one text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.supervised.engine_label import join_metrics

from .test_counters import metrics


def test_each_sample_says_its_engine_and_each_family_comes_once() -> None:
    text = join_metrics({"0": metrics(5, 1, "stop"), "1": metrics(7, 2, "stop", "length")})
    assert text.count(b"# TYPE t:tokens_total counter") == 1
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families)
    found = [sample for family in families for sample in family.samples]
    tokens = {s.labels["engine"]: s.value for s in found if s.name == "t:tokens_total"}
    assert tokens == {"0": 5.0, "1": 7.0}
    ends = {(s.labels["engine"], s.labels["reason"]) for s in found if s.name == "t:ends_total"}
    assert ends == {("0", "stop"), ("1", "stop"), ("1", "length")}


def test_a_metric_that_only_one_engine_has_is_kept() -> None:
    text = join_metrics({"0": b"", "1": b"own 3\nother{} 4\n"})
    assert text == b'own{engine="1"} 3\nother{engine="1"} 4\n'
