"""Prometheus metrics: the text that a scrape gets, parsed by Prometheus's own parser."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import Load
from tokenmill.core.contract.events import Finished, PluginFailed, Preempted, Refused
from tokenmill.core.contract.plugin_info import HookStats
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.outputs import FinishReason
from tokenmill.plugins.observers.prometheus import PrometheusMetrics, make_prometheus

from .samples import context, finished_request, started, step_done

LABELS = {"model_name": "smol", "engine": "0"}
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = (
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "mm_cache_queries",
    "mm_cache_hits",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)
LABELLED = {
    "request_success": "finished_reason",
    "prompt_tokens_by_source": "source",
    "spec_decode_num_accepted_tokens_per_pos": "position",
}
"""Counters with one more label."""
PER_TOKEN = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
PER_REQUEST = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
LENGTHS = "1 2 5 10 20 50 100"
"""For a model of 100 tokens, as here."""
HISTOGRAMS = {
    "time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 "
    "7.5 10 20 40 80 160 640 2560",
    "inter_token_latency_seconds": PER_TOKEN,
    "request_time_per_output_token_seconds": PER_TOKEN,
    "e2e_request_latency_seconds": PER_REQUEST,
    "request_queue_time_seconds": PER_REQUEST,
    "request_prefill_time_seconds": PER_REQUEST,
    "request_decode_time_seconds": PER_REQUEST,
    "request_inference_time_seconds": PER_REQUEST,
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "request_prompt_tokens": LENGTHS,
    "request_generation_tokens": LENGTHS,
    "request_max_num_generation_tokens": LENGTHS,
    "request_params_max_tokens": LENGTHS,
    "request_prefill_kv_computed_tokens": LENGTHS,
    "request_params_n": "1 2 5 10 20",
    "request_num_preemptions": "1 2 3 4 5 10 20",
}
"""Upper bounds by name, without +Inf."""


class Scrape:
    """One scrape, by sample name and labels."""

    def __init__(self, text: bytes) -> None:
        self.families = {f.name: f for f in text_string_to_metric_families(text.decode())}
        self.samples = {
            (s.name, frozenset(s.labels.items())): s.value
            for f in self.families.values()
            for s in f.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset({**LABELS, **labels}.items())]


@pytest.fixture
def metrics() -> PrometheusMetrics:
    metrics = PrometheusMetrics(context(metrics_prefix="vllm:"))
    metrics.on_started(started())
    return metrics


def scrape(metrics: PrometheusMetrics) -> Scrape:
    return Scrape(metrics.render_metrics())


def test_the_families_of_vllm_are_there_from_the_start_with_its_types_and_labels(
    metrics: PrometheusMetrics,
) -> None:
    families = scrape(metrics).families
    kinds = {"gauge": GAUGES, "counter": COUNTERS, "histogram": HISTOGRAMS}
    for kind, names in kinds.items():
        for name in names:
            family = families[f"vllm:{name}"]
            assert family.type == kind, name
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == LABELS.keys(), name
    for name, label in LABELLED.items():
        family = families[f"vllm:{name}"]
        assert family.type == "counter"
        assert all(s.labels.keys() == {*LABELS, label} for s in family.samples), name
    assert families["vllm:cache_config_info"].type == "gauge"
    assert all(family.documentation for family in families.values())
    for reason in FinishReason:
        assert scrape(metrics).value("vllm:request_success_total", finished_reason=reason) == 0


def test_the_prefix_is_the_engine_s(metrics: PrometheusMetrics) -> None:
    own = PrometheusMetrics(context())
    assert own.render_metrics() == b""
    own.on_started(started())
    assert {name.split(":")[0] for name in scrape(own).families} == {"tokenmill"}
    with pytest.raises(ConfigError, match="--metrics-prefix may have letters"):
        PrometheusMetrics(context(metrics_prefix="my metrics "))


def test_a_simulation_has_no_metrics() -> None:
    assert make_prometheus(replace(context(), is_simulated=True)) is None
    assert make_prometheus(context()) is not None


def test_a_step_moves_counters_gauges_and_latencies(metrics: PrometheusMetrics) -> None:
    metrics.on_step(step_done())
    metrics.on_step(step_done(num_running=1, num_waiting=0, kv_cache_usage=0.5))
    seen = scrape(metrics)
    assert seen.value("vllm:prompt_tokens_total") == 60
    assert seen.value("vllm:generation_tokens_total") == 4
    assert seen.value("vllm:prefix_cache_queries_total") == 80
    assert seen.value("vllm:prefix_cache_hits_total") == 20
    assert seen.value("vllm:mm_cache_queries_total") == 6
    assert seen.value("vllm:mm_cache_hits_total") == 2
    assert seen.value("vllm:prompt_tokens_by_source_total", source="computed") == 40
    assert seen.value("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 20
    assert seen.value("vllm:num_requests_running") == 1
    assert seen.value("vllm:num_requests_waiting") == 0
    assert seen.value("vllm:kv_cache_usage_perc") == 0.5
    assert seen.value("vllm:time_to_first_token_seconds_count") == 2
    assert seen.value("vllm:inter_token_latency_seconds_count") == 4
    assert seen.value("vllm:iteration_tokens_total_sum") == 64


def test_work_of_the_encoder_is_counted(metrics: PrometheusMetrics) -> None:
    metrics.on_step(step_done(num_encoded_tokens=128, encoder_seconds=0.5))
    metrics.on_step(step_done(num_encoded_tokens=64, encoder_seconds=0.25))
    seen = scrape(metrics)
    assert seen.value("vllm:encoder_tokens_total") == 192
    assert seen.value("vllm:encoder_seconds_total") == 0.75


def test_drafts_are_counted_also_by_position(metrics: PrometheusMetrics) -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos"
    assert scrape(metrics).value("vllm:spec_decode_num_drafts_total") == 0
    assert not scrape(metrics).families[name].samples
    for counts in ((2, 1), (1, 1, 1), ()):
        metrics.on_step(
            step_done(
                num_drafts=2,
                num_draft_tokens=5,
                num_accepted_tokens=sum(counts),
                accepted_tokens_per_pos=counts,
            )
        )
    seen = scrape(metrics)
    assert seen.value("vllm:spec_decode_num_drafts_total") == 6
    assert seen.value("vllm:spec_decode_num_draft_tokens_total") == 15
    assert seen.value("vllm:spec_decode_num_accepted_tokens_total") == 6
    assert [seen.value(f"{name}_total", position=str(i)) for i in range(3)] == [3, 2, 1]


def test_tokens_of_experts_are_counted_by_rank(metrics: PrometheusMetrics) -> None:
    for counts in ((30, 10), (), (5, 15)):
        metrics.on_step(step_done(expert_tokens=counts))
    seen = scrape(metrics)
    assert [seen.value("vllm:expert_tokens_total", rank=str(rank)) for rank in (0, 1)] == [35, 25]
    assert seen.value("vllm:expert_imbalance") == 1.5


def test_a_value_falls_into_the_first_bucket_that_holds_it(metrics: PrometheusMetrics) -> None:
    metrics.on_step(step_done(inter_token_latencies=(0.01, 0.02, 100.0)))
    seen = scrape(metrics)
    name = "vllm:inter_token_latency_seconds_bucket"
    values = [seen.value(name, le=le) for le in ("0.01", "0.025", "80.0", "+Inf")]
    assert values == [1, 2, 2, 3]
    assert seen.value("vllm:inter_token_latency_seconds_sum") == pytest.approx(100.03)


def test_buckets_are_those_of_vllm(metrics: PrometheusMetrics) -> None:
    families = scrape(metrics).families
    for name, bounds in HISTOGRAMS.items():
        samples = families[f"vllm:{name}"].samples
        found = [s.labels["le"] for s in samples if s.name.endswith("_bucket")]
        assert found == [*(str(float(bound)) for bound in bounds.split()), "+Inf"], name


def test_the_choices_of_a_prompt_are_counted_together_where_vllm_does(
    metrics: PrometheusMetrics,
) -> None:
    for request_id, lengths in (("a", (3, 9, 5)), ("b", (4,))):
        for i, length in enumerate(lengths):
            choice = finished_request(
                request_id=request_id,
                n=len(lengths),
                choice_index=i,
                num_generation_tokens=length,
            )
            metrics.on_finished(Finished(requests=(choice,)))
    seen = scrape(metrics)
    for name, total in (("request_max_num_generation_tokens", 13), ("request_params_n", 4)):
        assert seen.value(f"vllm:{name}_count") == 2
        assert seen.value(f"vllm:{name}_sum") == total
    assert seen.value("vllm:request_generation_tokens_count") == 4


def test_a_finished_request_is_counted_by_reason_and_stage(metrics: PrometheusMetrics) -> None:
    unstarted = finished_request(
        finish_reason=FinishReason.ABORT,
        num_generation_tokens=0,
        queue_time=None,
        prefill_time=None,
        decode_time=None,
    )
    metrics.on_finished(Finished(requests=(finished_request(), unstarted)))
    seen = scrape(metrics)
    assert seen.value("vllm:request_success_total", finished_reason="length") == 1
    assert seen.value("vllm:request_success_total", finished_reason="abort") == 1
    assert seen.value("vllm:e2e_request_latency_seconds_count") == 2
    assert seen.value("vllm:request_queue_time_seconds_count") == 1
    assert seen.value("vllm:request_inference_time_seconds_sum") == pytest.approx(0.9)
    assert seen.value("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert seen.value("vllm:request_prefill_kv_computed_tokens_sum") == 40
    assert seen.value("vllm:request_params_max_tokens_sum") == 10


def test_preemptions_and_failures_of_plugins_and_steps_are_counted(
    metrics: PrometheusMetrics,
) -> None:
    metrics.on_preempted(
        Preempted(
            request_id="a",
            mode="recompute",
            fell_back=True,
            num_computed_tokens=9,
            num_blocks=1,
            total_cumulative_preemption_cnt=1,
        )
    )
    refused = {"request_id": "a", "num_prompt_tokens": 1, "max_tokens": 1, "reason": "no"}
    for plugin in (None, "acme", "acme"):
        metrics.on_refused(Refused(**refused, plugin=plugin))
    metrics.on_plugin_failed(
        PluginFailed(plugin="acme", hook="on_step", error="x", action="dropped", count=3)
    )
    for raised in (True, False, True):
        metrics.on_step(step_done(raised=raised))
    seen = scrape(metrics)
    assert seen.value("vllm:num_failed_steps_total") == 2
    assert seen.value("vllm:request_refused_total", refused_by="queue") == 1
    assert seen.value("vllm:request_refused_total", refused_by="acme") == 2
    assert seen.value("vllm:num_preemptions_total") == 1
    assert seen.value("vllm:num_preemptions_by_mode_total", mode="recompute") == 1
    assert seen.value("vllm:num_preemptions_by_mode_total", mode="swap") == 0
    assert seen.value("vllm:num_swap_fallbacks_total") == 1
    labels = {"plugin": "acme", "hook": "on_step", "action": "dropped"}
    assert seen.value("vllm:plugin_failures_total", **labels) == 1


def test_the_cache_is_described_in_labels(metrics: PrometheusMetrics) -> None:
    [sample] = scrape(metrics).families["vllm:cache_config_info"].samples
    assert sample.value == 1
    assert sample.labels == {
        "block_size": "16",
        "num_gpu_blocks": "10",
        "gpu_memory_utilization": "0.92",
        "enable_prefix_caching": "True",
        "cache_dtype": "bfloat16",
        "engine": "0",
    }


def test_gauges_and_hooks_are_those_of_the_moment_while_the_engine_lives(
    metrics: PrometheusMetrics,
) -> None:
    class Engine:
        def load(self) -> Load:
            return Load(
                num_running=0,
                num_waiting=7,
                kv_cache_usage=0.0,
                stalled_for=0.0,
                is_alive=True,
                is_draining=False,
            )

        def hook_stats(self) -> tuple[HookStats, ...]:
            one = HookStats(plugin="acme", hook="schedule", calls=3, seconds=0.25, failures=1)
            return one, HookStats(plugin="acme", hook="on_step")

    async def live(engine: Any) -> None:
        metrics.on_step(step_done())
        async with metrics.lifespan(engine):
            assert scrape(metrics).value("vllm:num_requests_waiting") == 7
            assert scrape(metrics).value("vllm:num_requests_running") == 0
            schedule, on_step = (
                {"plugin": "acme", "hook": hook} for hook in ("schedule", "on_step")
            )
            assert scrape(metrics).value("vllm:plugin_hook_calls_total", **schedule) == 3
            assert scrape(metrics).value("vllm:plugin_hook_seconds_total", **schedule) == 0.25
            assert scrape(metrics).value("vllm:plugin_hook_failures_total", **schedule) == 1
            assert scrape(metrics).value("vllm:plugin_hook_calls_total", **on_step) == 0

    anyio.run(live, Engine())


IMPORTS = """
import sys
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost

host = PluginHost.load(EngineConfig())
before = set(sys.modules)
assert host.render_metrics() == b""
print([name for name in set(sys.modules) - before if name.startswith("prometheus_client")])
"""


def test_the_first_scrape_imports_nothing_so_it_is_no_slow_hook(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_two_engines_in_a_process_count_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = PluginHost.load(EngineConfig()), PluginHost.load(EngineConfig())
    for host in (one, two):
        host.emit(started())
    one.emit(step_done())
    values = [
        Scrape(host.render_metrics()).value("tokenmill:prompt_tokens_total") for host in (one, two)
    ]
    assert values == [30, 0]
