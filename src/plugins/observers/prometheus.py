"""Prometheus metrics under vLLM's names, so that existing dashboards and autoscalers work.

Metrics of requests are counted per completion: a request with n = 2 ends twice. Two of them are
counted per prompt, see PromptTally. Counting is plain arithmetic, because it happens in the
engine's loop. Prometheus's own classes are imported and used only for a scrape: they take 2 MB, and
the server's own process imports this file, too.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...plugin import (
    ConfigError,
    EngineClient,
    Finished,
    FinishReason,
    PluginContext,
    PluginFailed,
    Preempted,
    Refused,
    Registry,
    Started,
    StepDone,
    hookimpl,
    kinds,
)
from .histograms import PromptTally, make_histograms, measure

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

TOKENMILL_API = (1, 1)
QUEUE = "queue"
"""The label of requests that the full queue refused."""

_COUNTERS: Mapping[str, str] = {
    "num_preemptions": "Preempted requests.",
    "num_swap_fallbacks": "Preempted requests that were recomputed because host memory was full.",
    "num_failed_steps": "Steps that raised. Their requests were computed again.",
    "prompt_tokens": "Prompt tokens processed, including those from the prefix cache.",
    "prompt_tokens_cached": "Prompt tokens of finished requests that came from the prefix cache.",
    "generation_tokens": "Generated tokens.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "mm_cache_queries": "Tiles of images that prompts needed, beyond the prefix cache.",
    "mm_cache_hits": "Tiles of images that were encoded already.",
    "encoder_tokens": "Tokens that the encoder made of images.",
    "encoder_seconds": "Seconds in which images were encoded.",
    "spec_decode_num_drafts": "Drafts that were verified.",
    "spec_decode_num_draft_tokens": "Draft tokens that were verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens that were accepted.",
}
_LABELLED: Mapping[str, str] = {
    "request_success": "Finished requests by finish reason.",
    "request_refused": "Requests that were not queued, by what refused them: the full queue, or a "
    "plugin.",
    "num_preemptions_by_mode": "Preempted requests by mode.",
    "prompt_tokens_by_source": "Prompt tokens processed, by where they came from.",
    "spec_decode_num_accepted_tokens_per_pos": "Drafts whose token at this position was accepted; "
    "position 0 is the first.",
    "expert_tokens": "Tokens that the experts of a rank computed, summed over experts and layers.",
}
_HOOK_COUNTERS: Mapping[str, str] = {
    "calls": "Calls of a plugin's hook.",
    "seconds": "Seconds spent in a plugin's hook.",
    "failures": "Calls of a plugin's hook that failed, or gave a wrong answer.",
}
_GAUGES: Mapping[str, str] = {
    "num_requests_running": "Requests that hold KV blocks.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Fraction of the KV blocks in use; 1 means all of them.",
    "prefix_cache_hit_rate": "Fraction of tokens found in the prefix cache since the start.",
    "expert_imbalance": "Tokens of the busiest rank's experts in the last step, divided by the "
    "mean of all ranks; 0 without expert parallelism.",
}


class PrometheusMetrics:
    """The metrics of one engine, in a registry of their own."""

    def __init__(self, context: PluginContext) -> None:
        # Not in the first `render_metrics`: the import takes long, and a slow hook is logged.
        from prometheus_client.core import CollectorRegistry

        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._config = context.config
        self._prefix = _checked_prefix(context.config.metrics_prefix)
        self._started: Started | None = None
        self._started_at = time.time()
        self._engine: EngineClient | None = None
        self._counters: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        self._reasons = Counter({reason.value: 0 for reason in FinishReason})
        self._preemptions = Counter({"recompute": 0, "swap": 0})
        self._refusals = Counter({QUEUE: 0})
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._accepted_per_position: list[int] = []
        self._expert_tokens: Counter[int] = Counter()
        self._prompts = PromptTally()
        self._gauges = dict.fromkeys(_GAUGES, 0.0)
        self._histograms = make_histograms(context.config.max_model_len or 1)

    @hookimpl
    @asynccontextmanager
    async def lifespan(self, engine: EngineClient) -> AsyncIterator[None]:
        self._engine = engine
        yield
        self._engine = None

    @hookimpl
    def on_started(self, event: Started) -> None:
        self._started = event
        self._histograms = make_histograms(event.max_model_len)

    @hookimpl
    def on_refused(self, event: Refused) -> None:
        self._refusals[event.plugin or QUEUE] += 1

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self._preemptions[event.mode] += 1
        self._counters["num_preemptions"] += 1
        self._counters["num_swap_fallbacks"] += event.fell_back

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        counters, histograms = self._counters, self._histograms
        counters["num_failed_steps"] += event.raised
        counters["prompt_tokens"] += event.num_prompt_tokens
        counters["generation_tokens"] += event.num_generation_tokens
        counters["prefix_cache_queries"] += event.prefix_cache_queries
        counters["prefix_cache_hits"] += event.prefix_cache_hits
        counters["mm_cache_queries"] += event.mm_cache_queries
        counters["mm_cache_hits"] += event.mm_cache_hits
        counters["encoder_tokens"] += event.num_encoded_tokens
        counters["encoder_seconds"] += event.encoder_seconds
        self._count_drafts(event)
        self._count_expert_tokens(event.expert_tokens)
        queries = counters["prefix_cache_queries"]
        hit_rate = counters["prefix_cache_hits"] / queries if queries else 0.0
        self._gauges["prefix_cache_hit_rate"] = hit_rate
        histograms["iteration_tokens_total"].observe(
            event.num_prompt_tokens + event.num_generation_tokens
        )
        for seconds in event.time_to_first_tokens:
            histograms["time_to_first_token_seconds"].observe(seconds)
        for seconds in event.inter_token_latencies:
            histograms["inter_token_latency_seconds"].observe(seconds)
        self._set_gauges(event.num_running, event.num_waiting, event.kv_cache_usage)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        for request in event.requests:
            self._reasons[request.finish_reason.value] += 1
            self._counters["prompt_tokens_cached"] += request.num_cached_tokens
            for name, value in (measure(request) | self._prompts.count(request)).items():
                self._histograms[name].observe(value)

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self._failures[event.plugin, event.hook, event.action] += 1

    @hookimpl
    def render_metrics(self) -> bytes:
        from prometheus_client import generate_latest

        if self._engine is not None:  # requests may have been aborted since the last step
            load = self._engine.load()
            self._set_gauges(load.num_running, load.num_waiting, load.kv_cache_usage)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; the registry calls this."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        if self._started is None:
            return
        names, values = ["model_name", "engine"], [self._started.model_name, "0"]
        yield self._cache_config(self._started)
        yield self._adapters()
        for name, help in _GAUGES.items():
            gauge = GaugeMetricFamily(self._prefix + name, help, labels=names)
            gauge.add_metric(values, self._gauges[name])
            yield gauge
        for name, help in _COUNTERS.items():
            counter = CounterMetricFamily(self._prefix + name, help, labels=names)
            counter.add_metric(values, self._counters[name])
            yield counter
        positions = self._accepted_per_position
        by_label: tuple[tuple[str, str, Mapping[Any, float]], ...] = (
            ("request_success", "finished_reason", self._reasons),
            ("request_refused", "refused_by", self._refusals),
            ("num_preemptions_by_mode", "mode", self._preemptions),
            ("prompt_tokens_by_source", "source", self._prompt_sources()),
            ("spec_decode_num_accepted_tokens_per_pos", "position", dict(enumerate(positions))),
            ("expert_tokens", "rank", self._expert_tokens),
        )
        for name, label, counts in by_label:
            found = {(*values, str(key)): count for key, count in counts.items()}
            yield self._labelled_counter(name, _LABELLED[name], [*names, label], found)
        yield self._labelled_counter(
            "plugin_failures",
            "Plugin failures by plugin, hook and the action of the engine.",
            [*names, "plugin", "hook", "action"],
            {(*values, *key): count for key, count in self._failures.items()},
        )
        yield from self._hook_counters(names, values)
        for name, histogram in self._histograms.items():
            family = HistogramMetricFamily(self._prefix + name, histogram.help, labels=names)
            buckets, total = histogram.sample()
            family.add_metric(values, buckets, total)
            yield family

    def _hook_counters(self, names: list[str], values: list[str]) -> Iterator[Metric]:
        found = () if self._engine is None else self._engine.hook_stats()
        for field, help in _HOOK_COUNTERS.items():
            yield self._labelled_counter(
                f"plugin_hook_{field}",
                help,
                [*names, "plugin", "hook"],
                {(*values, stats.plugin, stats.hook): getattr(stats, field) for stats in found},
            )

    def _prompt_sources(self) -> dict[str, float]:
        hits = self._counters["prefix_cache_hits"]
        computed = max(0, self._counters["prompt_tokens"] - hits)
        return {"computed": computed, "local_cache_hit": hits, "external_kv_transfer": 0}

    def _count_drafts(self, event: StepDone) -> None:
        self._counters["spec_decode_num_drafts"] += event.num_drafts
        self._counters["spec_decode_num_draft_tokens"] += event.num_draft_tokens
        self._counters["spec_decode_num_accepted_tokens"] += event.num_accepted_tokens
        counts = self._accepted_per_position
        counts += [0] * (len(event.accepted_tokens_per_pos) - len(counts))
        for position, count in enumerate(event.accepted_tokens_per_pos):
            counts[position] += count

    def _count_expert_tokens(self, counts: Sequence[int]) -> None:
        if any(counts):
            self._expert_tokens.update(dict(enumerate(counts)))
            self._gauges["expert_imbalance"] = max(counts) * len(counts) / sum(counts)

    def _set_gauges(self, num_running: int, num_waiting: int, kv_cache_usage: float) -> None:
        self._gauges["num_requests_running"] = num_running
        self._gauges["num_requests_waiting"] = num_waiting
        self._gauges["kv_cache_usage_perc"] = kv_cache_usage

    def _labelled_counter(
        self, name: str, help: str, labels: list[str], counts: Mapping[tuple[str, ...], float]
    ) -> CounterMetricFamily:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(self._prefix + name, help, labels=labels)
        for values, count in counts.items():
            family.add_metric(values, count)
        return family

    def _cache_config(self, started: Started) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        info = started.info
        labels = {
            "block_size": info.block_size,
            "num_gpu_blocks": info.num_blocks,
            "gpu_memory_utilization": self._config.gpu_memory_utilization,
            "enable_prefix_caching": self._config.enable_prefix_caching,
            "cache_dtype": info.kv_cache_dtype or info.dtype,
            "engine": 0,
        }
        family = GaugeMetricFamily(
            f"{self._prefix}cache_config_info", "The KV cache, as labels.", labels=list(labels)
        )
        family.add_metric([str(value) for value in labels.values()], 1)
        return family

    def _adapters(self) -> GaugeMetricFamily:
        """No adapters, because the engine has none. An endpoint picker of Kubernetes' gateway API
        reports an error at each scrape if the metric is missing."""
        from prometheus_client.core import GaugeMetricFamily

        labels = {"max_lora": 0, "running_lora_adapters": "", "waiting_lora_adapters": ""}
        family = GaugeMetricFamily(
            f"{self._prefix}lora_requests_info",
            "LoRA adapters as labels; the value is the time of their last change.",
            labels=[*labels, "engine"],
        )
        family.add_metric([*map(str, labels.values()), "0"], self._started_at)
        return family


def _checked_prefix(prefix: str) -> str:
    if not re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?", prefix):
        raise ConfigError(
            "--metrics-prefix may have letters, digits, '_' and ':', and no digit at its start, "
            f"got {prefix!r}"
        )
    return prefix


def make_prometheus(context: PluginContext) -> PrometheusMetrics | None:
    """Make the observer; None in a simulation, because nobody reads its metrics."""
    return None if context.is_simulated else PrometheusMetrics(context)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.OBSERVER, "prometheus", make_prometheus)
