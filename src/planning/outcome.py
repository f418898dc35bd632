"""The result of one virtual run. Fields have the names of `vllm bench serve` where it has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Metrics of one virtual run. Latencies are in milliseconds of virtual time, or None."""

    duration: float
    """Seconds from the first arrival to the last token."""
    completed: int
    refused: Mapping[str, int]
    """Number of requests that were not admitted, by reason."""
    timed_out: int
    """Number of requests that were ended by request_timeout."""
    failed: int
    total_input_tokens: int
    """Prompt tokens of the completed requests."""
    total_output_tokens: int
    """Generated tokens of all requests."""
    request_throughput: float
    """Completed requests per second."""
    output_throughput: float
    """Generated tokens per second."""
    mean_ttft_ms: float | None
    """Time from arrival to first token."""
    median_ttft_ms: float | None
    p99_ttft_ms: float | None
    p99_tpot_ms: float | None
    """Time per token of one request after its first one."""
    median_itl_ms: float | None
    """Time between two tokens of one request."""
    p99_itl_ms: float | None
    max_itl_ms: float | None
    median_e2el_ms: float | None
    """Time from arrival to last token, over the completed requests."""
    p99_e2el_ms: float | None
    num_preemptions: Mapping[str, int]
    """By mode: recompute or swap."""
    num_swap_fallbacks: int
    """Swaps that became recomputations because host memory was full. They count as recompute."""
    prefix_cache_queries: int
    """Tokens looked up by requests that started."""
    prefix_cache_hits: int
    prefix_cache_hit_rate: float | None
    num_steps: int
    plugin_failures: Mapping[str, int]
    """By plugin and hook. The engine's fallback decided instead."""


def percentile_ms(seconds: Sequence[float], fraction: float) -> float | None:
    """The value that a fraction of the ascending values does not exceed (nearest rank), in
    milliseconds. None if there are no values."""
    if not seconds:
        return None
    return 1000 * seconds[max(0, math.ceil(fraction * len(seconds)) - 1)]


def mean_ms(seconds: Sequence[float]) -> float | None:
    """The arithmetic mean, in milliseconds. None if there are no values."""
    return 1000 * math.fsum(seconds) / len(seconds) if seconds else None
