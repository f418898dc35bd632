"""Prometheus metrics: the text that a scrape gets, parsed by Prometheus's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import Load
from tokenmill.core.contract.events import Finished, PluginFailed, Preempted
from tokenmill.core.contract.plugin_info import HookStats
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.outputs import FinishReason
from tokenmill.plugins.observers.prometheus import PrometheusMetrics

from .samples import context, finished_request, started, step_done

LABELS = {"model_name": "smol", "engine": "0"}
VLLM_NAMES = [
    "cache_config_info",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_hit_rate",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "request_success",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
    "request_num_preemptions",
]


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


def test_all_names_are_there_from_the_start(metrics: PrometheusMetrics) -> None:
    families = scrape(metrics).families
    assert {f"vllm:{name}" for name in VLLM_NAMES} <= set(families)
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


def test_a_step_moves_counters_gauges_and_latencies(metrics: PrometheusMetrics) -> None:
    metrics.on_step(step_done())
    metrics.on_step(step_done(num_running=1, num_waiting=0, kv_cache_usage=0.5))
    seen = scrape(metrics)
    assert seen.value("vllm:prompt_tokens_total") == 60
    assert seen.value("vllm:generation_tokens_total") == 4
    assert seen.value("vllm:prefix_cache_queries_total") == 80
    assert seen.value("vllm:prefix_cache_hits_total") == 20
    assert seen.value("vllm:num_requests_running") == 1
    assert seen.value("vllm:num_requests_waiting") == 0
    assert seen.value("vllm:kv_cache_usage_perc") == 0.5
    assert seen.value("vllm:time_to_first_token_seconds_count") == 2
    assert seen.value("vllm:inter_token_latency_seconds_count") == 4
    assert seen.value("vllm:iteration_tokens_total_sum") == 64


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


def test_a_value_falls_into_the_first_bucket_that_holds_it(metrics: PrometheusMetrics) -> None:
    metrics.on_step(step_done(inter_token_latencies=(0.01, 0.02, 100.0)))
    seen = scrape(metrics)
    name = "vllm:inter_token_latency_seconds_bucket"
    values = [seen.value(name, le=le) for le in ("0.01", "0.025", "80.0", "+Inf")]
    assert values == [1, 2, 2, 3]
    assert seen.value("vllm:inter_token_latency_seconds_sum") == pytest.approx(100.03)


def test_length_buckets_go_by_one_two_five_up_to_the_longest(metrics: PrometheusMetrics) -> None:
    family = scrape(metrics).families["vllm:request_prompt_tokens"]
    bounds = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "+Inf"]


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


def test_preemptions_and_plugin_failures_are_counted(metrics: PrometheusMetrics) -> None:
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
    metrics.on_plugin_failed(
        PluginFailed(plugin="acme", hook="on_step", error="x", action="dropped", count=3)
    )
    seen = scrape(metrics)
    assert seen.value("vllm:num_preemptions_total", mode="recompute") == 1
    assert seen.value("vllm:num_preemptions_total", mode="swap") == 0
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
