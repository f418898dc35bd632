"""The result of a fleet's run. Fields have the names of `vllm bench serve` where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..outcome import mean_ms, percentile_ms
from ..virtual_engine import Watch
from .tally import Interval, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One interval of the run, for charts over time."""

    at: float
    """Its begin, in seconds."""
    num_arrived: int
    num_good: int
    num_failed: int
    median_ttft_ms: float | None
    p99_ttft_ms: float | None
    num_serving: int
    """Replicas that serve at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    """Metrics of one run. Latencies are in milliseconds of virtual time, or None."""

    duration: float
    """Seconds until the last arrival or the last token."""
    num_requests: int
    completed: int
    failures: Mapping[str, int]
    """Requests that ended with an error, by reason."""
    num_begun_lost: int
    """Failed requests whose senders had a part of the answer."""
    num_resent: int
    """Requests of lost replicas that were sent to another one."""
    num_sent_to_lost: int
    """Requests that were sent to a dead replica, before its loss was detected."""
    goodput: float
    """Fraction of all requests that were completed within the limits."""
    request_goodput: float
    """Requests per second that were completed within the limits."""
    request_throughput: float
    output_throughput: float
    mean_ttft_ms: float | None
    median_ttft_ms: float | None
    p99_ttft_ms: float | None
    median_tpot_ms: float | None
    p99_tpot_ms: float | None
    median_itl_ms: float | None
    p99_itl_ms: float | None
    """ITL is at most 0.5 % too high."""
    median_e2el_ms: float | None
    p99_e2el_ms: float | None
    prefix_cache_hit_rate: float | None
    num_preemptions: Mapping[str, int]
    replica_hours: float
    """Time that replicas existed, from the start of their machine, with draining."""
    max_serving: int
    imbalance: float | None
    """Requests sent to the replica that got the most, divided by the average of all that got any
    or served from the beginning. 1: even."""
    max_open: int
    """Maximum number of requests that one replica had at once."""
    num_steps: int
    plugin_failures: Mapping[str, int]
    """By plugin and hook. The built-in fallback decided instead."""
    moments: tuple[Moment, ...]

    @property
    def num_failed(self) -> int:
        """Requests that ended with an error."""
        return sum(self.failures.values())

    @property
    def hours_per_1000_good(self) -> float | None:
        """Replica hours for 1,000 good requests."""
        num_good = self.goodput * self.num_requests
        return 1000 * self.replica_hours / num_good if num_good else None


def summarize(
    tally: Tally,
    watch: Watch,
    *,
    duration: float,
    num_replicas: int,
    router_failures: Mapping[str, int],
) -> FleetOutcome:
    """The result, from the counts."""
    ttfts, tpots, e2els = sorted(tally.ttfts), sorted(tally.tpots), sorted(tally.e2els)
    num_sent, count = tally.num_sent, tally.num_requests
    average = num_sent.total() / max(len(num_sent), num_replicas)
    return FleetOutcome(
        duration=duration,
        num_requests=count,
        completed=tally.num_completed,
        failures=dict(sorted(tally.failures.items())),
        num_begun_lost=tally.num_begun_lost,
        num_resent=tally.num_resent,
        num_sent_to_lost=tally.num_sent_to_lost,
        goodput=tally.num_good / count if count else 0.0,
        request_goodput=tally.num_good / duration if duration else 0.0,
        request_throughput=tally.num_completed / duration if duration else 0.0,
        output_throughput=tally.num_output_tokens / duration if duration else 0.0,
        mean_ttft_ms=mean_ms(ttfts),
        median_ttft_ms=percentile_ms(ttfts, 0.5),
        p99_ttft_ms=percentile_ms(ttfts, 0.99),
        median_tpot_ms=percentile_ms(tpots, 0.5),
        p99_tpot_ms=percentile_ms(tpots, 0.99),
        median_itl_ms=tally.gaps.percentile(0.5),
        p99_itl_ms=tally.gaps.percentile(0.99),
        median_e2el_ms=percentile_ms(e2els, 0.5),
        p99_e2el_ms=percentile_ms(e2els, 0.99),
        prefix_cache_hit_rate=watch.num_hits / watch.num_queries if watch.num_queries else None,
        num_preemptions=dict(watch.preemptions),
        replica_hours=tally.replica_seconds / 3600,
        max_serving=tally.max_serving,
        imbalance=max(num_sent.values()) / average if average else None,
        max_open=tally.max_open,
        num_steps=watch.num_steps,
        plugin_failures=dict(sorted({**watch.failures, **router_failures}.items())),
        moments=tuple(
            _moment(number * tally.interval_seconds, one)
            for number, one in enumerate(tally.intervals)
        ),
    )


def _moment(at: float, interval: Interval) -> Moment:
    ttfts = sorted(interval.ttfts)
    return Moment(
        at=at,
        num_arrived=interval.num_arrived,
        num_good=interval.num_good,
        num_failed=interval.num_failed,
        median_ttft_ms=percentile_ms(ttfts, 0.5),
        p99_ttft_ms=percentile_ms(ttfts, 0.99),
        num_serving=interval.num_serving,
    )
