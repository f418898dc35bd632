"""The report of a run as text, line by line as `vllm bench serve` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .figures import METRICS, Wishes

_WIDTH = 50
BUSY_CLIENT = 0.8
"""Share of a CPU above which the client limits what is measured."""


def lines(result: Mapping[str, Any], wishes: Wishes) -> Iterator[str]:
    """The lines of the report. `result` has the fields of the saved file."""
    yield " Serving Benchmark Result ".center(_WIDTH, "=")
    yield _line("Successful requests:", result["completed"])
    yield _line("Failed requests:", result["failed"])
    if result["max_concurrency"] is not None:
        yield _line("Maximum request concurrency:", result["max_concurrency"])
    if result["request_rate"] != "inf":
        yield _line("Request rate configured (RPS):", float(result["request_rate"]))
    yield _line("Benchmark duration (s):", result["duration"])
    yield _line("Total input tokens:", result["total_input_tokens"])
    if wishes.generates:
        yield _line("Total generated tokens:", result["total_output_tokens"])
    yield _line("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        yield _line("Request goodput (req/s):", result["request_goodput"])
    if wishes.generates:
        yield _line("Output token throughput (tok/s):", result["output_throughput"])
        peak = result["max_output_tokens_per_s"]
        yield _line("Peak output token throughput (tok/s):", peak)
        yield _line("Peak concurrent requests:", float(result["max_concurrent_requests"]))
    yield _line("Total token throughput (tok/s):", result["total_token_throughput"])
    for name in wishes.metrics if wishes.generates else ("e2el",):
        yield from _metric(name, result, wishes)
    yield "=" * _WIDTH
    share = result["client_cpu_share"]
    yield f"The client used {share:.0%} of a CPU."
    if share > BUSY_CLIENT:
        yield "It is the bottleneck: the server may be faster. Start several clients."


def _metric(name: str, result: Mapping[str, Any], wishes: Wishes) -> Iterator[str]:
    short, long = METRICS[name]
    yield long.center(_WIDTH, "-")
    yield _line(f"Mean {short} (ms):", result[f"mean_{name}_ms"])
    yield _line(f"Median {short} (ms):", result[f"median_{name}_ms"])
    for percentile in wishes.percentiles:
        key = f"p{percentile:g}"
        yield _line(f"{key.upper()} {short} (ms):", result[f"{key}_{name}_ms"])


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"
