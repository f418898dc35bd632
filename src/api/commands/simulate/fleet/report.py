"""Prints the results of `tokenmill simulate fleet`, as tables or as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ... import printing
from ..comparison import describe, milliseconds
from ..vary import Settings

if TYPE_CHECKING:
    from .....planning.fleet.outcome import FleetOutcome

COLUMNS_PER_TABLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One run: a policy and a fleet."""

    policy: Settings
    num_replicas: int | None
    """At the beginning; None: a search found no number that is enough."""
    num_lost: int
    """Replicas that died."""
    outcome: FleetOutcome
    examples: Mapping[str, str]
    """The first message of each reason of a failure."""
    tried: Mapping[int, float] | None = None
    """The goodput of each number of replicas that a search tried; None without a search."""

    @property
    def title(self) -> str:
        """The policy, and whether replicas were lost."""
        lost = f", {self.num_lost} lost" if self.num_lost else ""
        return f"{describe(self.policy)}{lost}"


ROWS = (
    "replicas", "maximum serving", "goodput", "good requests/s", "TTFT mean", "TTFT p50",
    "TTFT p99", "TPOT p99", "ITL p50", "ITL p99", "E2E p50", "E2E p99", "output tokens/s",
    "prefix-hit rate", "requests", "completed", "ended with an error", "of these begun",
    "sent again", "sent to a lost replica", "preemptions", "busiest / average",
    "maximum open per replica", "replica hours", "hours per 1,000 good",
)  # fmt: skip


def cells(column: Column) -> tuple[str, ...]:
    """The figures as text, in the order of ROWS."""
    one = column.outcome
    hours = one.hours_per_1000_good
    return (
        "none is enough" if column.num_replicas is None else str(column.num_replicas),
        str(one.max_serving),
        f"{one.goodput:.2%}",
        f"{one.request_goodput:.2f}",
        *map(milliseconds, (one.mean_ttft_ms, one.median_ttft_ms, one.p99_ttft_ms,
                            one.p99_tpot_ms, one.median_itl_ms, one.p99_itl_ms,
                            one.median_e2el_ms, one.p99_e2el_ms)),
        f"{one.output_throughput:.1f}",
        "-" if one.prefix_cache_hit_rate is None else f"{one.prefix_cache_hit_rate:.1%}",
        str(one.num_requests),
        str(one.completed),
        str(one.num_failed),
        str(one.num_begun_lost),
        str(one.num_resent),
        str(one.num_sent_to_lost),
        str(sum(one.num_preemptions.values())),
        "-" if one.imbalance is None else f"{one.imbalance:.2f}",
        str(one.max_open),
        f"{one.replica_hours:.2f}",
        "-" if hours is None else f"{hours:.2f}",
    )  # fmt: skip


def print_json(load: Mapping[str, Any], source: str, columns: Sequence[Column]) -> None:
    """Print one JSON document: the load, the step times, and a result for each run."""
    printing.print_json(
        {
            "load": load,
            "step_time": source,
            "results": [
                {
                    "policy": one.policy,
                    "replicas": one.num_replicas,
                    "replicas_lost": one.num_lost,
                    "tried": None
                    if one.tried is None
                    else {str(number): goodput for number, goodput in one.tried.items()},
                    **msgspec.to_builtins(one.outcome),
                    "examples": one.examples,
                }
                for one in columns
            ],
            "remarks": list(remarks(columns)),
        }
    )


def print_tables(load: Mapping[str, Any], source: str, columns: Sequence[Column]) -> None:
    """Print tables with a column for each run, at most COLUMNS_PER_TABLE in each."""
    print(describe_load(load))
    print(source)
    for first in range(0, len(columns), COLUMNS_PER_TABLE):
        part = columns[first : first + COLUMNS_PER_TABLE]
        titles = [one.title for one in part]
        table = printing.new_table("", *titles, right=titles)
        for name, row in zip(ROWS, zip(*map(cells, part), strict=True), strict=True):
            table.add_row(name, *row)
        print()
        printing.print_table(table)
    found = list(remarks(columns))
    if found:
        print("", *found, sep="\n")


def describe_load(load: Mapping[str, Any]) -> str:
    return (
        f"{load['num_requests']} requests in {load['duration']:.0f} s ({load['arrivals']}, seed "
        f"{load['seed']}); good within {', '.join(load['limits'])}; all times are virtual"
    )


def remarks(columns: Sequence[Column]) -> Iterator[str]:
    """Lines that answer the questions of a search or a loss, and that name failures."""
    for one in columns:
        if one.tried is not None:
            tried = ", ".join(f"{number}: {good:.1%}" for number, good in one.tried.items())
            yield f"{one.title}: goodput by number of replicas: {tried}"
    for one, other in itertools.pairwise(columns):
        if one.num_lost and one.policy == other.policy and not other.num_lost:
            yield _loss(one, other)
    for one in columns:
        outcome = one.outcome
        for reason, count in outcome.failures.items():
            example = f", for example: {one.examples[reason]}" if reason in one.examples else ""
            yield f"{one.title}: {count} ended with an error ({reason}){example}"
        if outcome.num_sent_to_lost:
            yield (
                f"{one.title}: {outcome.num_sent_to_lost} requests were sent to a replica that was "
                "dead already"
            )
        for where, count in outcome.plugin_failures.items():
            yield f"{one.title}: {where} failed {count} times, and the built-in fallback decided"


def _loss(one: Column, other: Column) -> str:
    """The cost of a loss: the differences from the same run without it."""
    lost, whole = one.outcome, other.outcome
    num_good = whole.goodput * whole.num_requests - lost.goodput * lost.num_requests
    return (
        f"{describe(one.policy)}: the loss of {one.num_lost} replicas costs {num_good:.0f} good "
        f"requests ({whole.goodput - lost.goodput:.2%}), {lost.num_failed - whole.num_failed} "
        f"errors, and raises the 99th percentile of TTFT from {milliseconds(whole.p99_ttft_ms)} to "
        f"{milliseconds(lost.p99_ttft_ms)}"
    )
