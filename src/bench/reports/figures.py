"""Figures of a run, with the names and definitions of `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.errors import ConfigError
from ..running import Answer, Run

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client Queue Time"),
}
"""Names of --percentile-metrics, with a short and a long title."""
DETAILS = (
    *("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"),
    *("latencies", "queue_times"),
)
"""The lists with a value per request, which only --save-detailed keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The figures that are computed."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl")
    percentiles: Sequence[float] = (99.0,)
    goodput: Mapping[str, float] = field(default_factory=dict)
    """Limits in milliseconds, by metric: ttft, tpot and e2el."""
    generates: bool = True
    """False: embeddings, which have only an end-to-end latency."""


def parse_limits(texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Limits in milliseconds from ["ttft:200", "tpot:50"]. Raises ConfigError."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        if name not in names:
            raise ConfigError(f"--goodput knows {', '.join(names)}, not {name!r}")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not found[name] > 0:
            raise ConfigError(f"--goodput must be NAME:MILLISECONDS, got {text!r}")
    return found


def describe(run: Run, wishes: Wishes) -> dict[str, Any]:
    """The fields of the result, as vLLM names them."""
    done = [answer for answer in run.answers if answer.is_ok]
    num_input = sum(answer.num_prompt_tokens for answer in done)
    num_output = sum(answer.num_output_tokens for answer in done)
    seconds = run.seconds or math.nan
    result: dict[str, Any] = {
        "duration": run.seconds,
        "completed": len(done),
        "failed": len(run.answers) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / seconds,
        "request_goodput": _count_good(done, wishes.goodput) / seconds if wishes.goodput else None,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        "input_lens": [answer.num_prompt_tokens for answer in run.answers],
        "output_lens": [answer.num_output_tokens for answer in run.answers],
        "ttfts": [answer.ttft for answer in run.answers],
        "itls": [answer.gaps for answer in run.answers],
        "latencies": [answer.latency for answer in run.answers],
        "start_times": [answer.start for answer in run.answers],
        "queue_times": [answer.queued for answer in run.answers],
        "generated_texts": [answer.text for answer in run.answers],
        "errors": [answer.error for answer in run.answers],
        **_peaks(done),
        "client_cpu_share": run.client_share,
    }
    values = values_of(done)
    for name in wishes.metrics if wishes.generates else ("e2el",):
        result |= summarize(name, values[name], wishes.percentiles)
    return result


def values_of(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Seconds by metric. An answer of one token has no time per output token."""
    return {
        "ttft": [answer.ttft for answer in answers],
        "tpot": [tpot(answer) for answer in answers if answer.num_output_tokens > 1],
        "itl": [gap for answer in answers for gap in answer.gaps],
        "e2el": [answer.latency for answer in answers],
        "client_queue_time": [answer.queued for answer in answers],
    }


def tpot(answer: Answer) -> float:
    """Seconds per output token after the first one; 0 for an answer of one token."""
    if answer.num_output_tokens <= 1:
        return 0.0
    return (answer.latency - answer.ttft) / (answer.num_output_tokens - 1)


def summarize(
    name: str, seconds: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    """Mean, median, deviation and percentiles of a metric, in milliseconds."""
    values = np.array(seconds or [0.0]) * 1000
    found = {
        f"mean_{name}_ms": float(np.mean(values)),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
    }
    for percentile in percentiles:
        found[f"p{percentile:g}_{name}_ms"] = float(np.percentile(values, percentile))
    return found


def _count_good(answers: Sequence[Answer], limits: Mapping[str, float]) -> int:
    def is_good(answer: Answer) -> bool:
        found = {"ttft": answer.ttft, "tpot": tpot(answer), "e2el": answer.latency}
        return all(found[name] * 1000 <= limit for name, limit in limits.items())

    return sum(map(is_good, answers))


def _peaks(answers: Sequence[Answer]) -> dict[str, float]:
    """The maximum per second: of tokens, or parts of answers, and of requests that run."""
    if not answers:
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    first = min(answer.start for answer in answers)
    tokens: dict[int, int] = {}
    running: dict[int, int] = {}
    for answer in answers:
        now = answer.start - first
        for second in range(int(now), int(now + answer.latency) + 1):
            running[second] = running.get(second, 0) + 1
        now += answer.ttft
        for gap in (0.0, *answer.gaps):
            now += gap
            tokens[int(now)] = tokens.get(int(now), 0) + 1
    return {
        "max_output_tokens_per_s": float(max(tokens.values())),
        "max_concurrent_requests": max(running.values()),
    }
