"""Prints the results of `tokenmill simulate compare`, as tables or as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..printing import print_table
from .vary import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from ....planning.outcome import Outcome
    from ....planning.step_time import StepTimes
    from ....planning.workload import PlannedRequest

COLUMNS_PER_TABLE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A workload, and its outcome under each combination of settings."""

    requests: Sequence[PlannedRequest]
    times: StepTimes
    step_time_file: Path | None
    """None: the bundled file."""
    settings: Sequence[Settings]
    outcomes: Sequence[Outcome]
    examples: Sequence[Mapping[str, str]]
    """Per combination: the first message of each reason for refusals and of each plugin failure."""
    decisions: Sequence[int]
    """Per combination: the hash of its decisions, see VirtualRun."""

    @property
    def same_decisions(self) -> list[list[int]]:
        """Groups of combinations, by index, that never decided differently."""
        groups = defaultdict(list)
        for index, decisions in enumerate(self.decisions):
            groups[decisions].append(index)
        return [group for group in groups.values() if len(group) > 1]


def describe(settings: Settings) -> str:
    return ", ".join(f"{key}={_word(value)}" for key, value in settings.items()) or "as given"


def describe_times(times: StepTimes, step_time_file: Path | None) -> str:
    """One sentence that says where the step times come from."""
    what = (
        f"{times.model.name} in {times.model.dtype} on "
        f"{times.machine.get('processor', 'an unknown processor')}, "
        f"{times.machine.get('threads', '?')} thread(s)"
        f"{', CPU time' if times.machine.get('clock') == 'cpu' else ''}"
    )
    if step_time_file is None:
        return (
            f"these are BUNDLED step times ({what}), NOT those of this machine: measure yours with "
            "`tokenmill simulate measure`, and use them with --step-time"
        )
    return f"step times from {step_time_file}: {what}"


def print_json(comparison: Comparison) -> None:
    """Print one JSON document: workload, step times, a result for each combination, and groups of
    results, by index, whose policies never decided differently."""
    document = {
        "workload": _describe_workload(comparison.requests),
        "step_time": {
            "file": str(comparison.step_time_file) if comparison.step_time_file else None,
            "is_bundled": comparison.step_time_file is None,
            "model": comparison.times.model.name,
            "dtype": comparison.times.model.dtype,
            "machine": comparison.times.machine,
            "median_relative_error": comparison.times.median_relative_error,
        },
        "results": [
            {"settings": settings, **msgspec.to_builtins(outcome), "examples": examples}
            for settings, outcome, examples in zip(
                comparison.settings, comparison.outcomes, comparison.examples, strict=True
            )
        ],
        "same_decisions": comparison.same_decisions,
    }
    print(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_tables(comparison: Comparison) -> None:
    """Print tables with a column for each combination, at most COLUMNS_PER_TABLE in each."""
    workload = _describe_workload(comparison.requests)
    print(
        f"{workload['num_requests']} requests in {workload['last_arrival']:.1f} s, "
        f"{workload['input_tokens']} tokens in, {workload['output_tokens']} out; "
        "all times are virtual"
    )
    print(describe_times(comparison.times, comparison.step_time_file))
    for first in range(0, len(comparison.outcomes), COLUMNS_PER_TABLE):
        print()
        print_table(_table(comparison, slice(first, first + COLUMNS_PER_TABLE)))
    for line in _remarks(comparison):
        print(line)


def _describe_workload(requests: Sequence[PlannedRequest]) -> dict[str, int | float]:
    return {
        "num_requests": len(requests),
        "input_tokens": sum(len(request.prompt_token_ids) for request in requests),
        "output_tokens": sum(request.max_tokens for request in requests),
        "last_arrival": max(request.at for request in requests),
    }


def _table(comparison: Comparison, part: slice) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("\n".join(comparison.settings[0]))
    for settings in comparison.settings[part]:
        table.add_column("\n".join(map(_word, settings.values())), justify="right")
    outcomes = comparison.outcomes[part]
    for name, cells in zip(_ROWS, zip(*map(_cells, outcomes), strict=True), strict=True):
        table.add_row(name, *cells)
    return table


_ROWS = (
    "TTFT mean", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "ITL max", "E2E p50", "E2E p99",
    "output tokens/s", "requests/s", "preemptions by recompute", "preemptions by swap",
    "prefix-hit rate", "makespan", "completed", "refused", "timed out",
)  # fmt: skip


def _cells(outcome: Outcome) -> tuple[str, ...]:
    """An outcome's figures as text, in the order of _ROWS."""
    latencies = (
        outcome.mean_ttft_ms, outcome.median_ttft_ms, outcome.p99_ttft_ms, outcome.median_itl_ms,
        outcome.p99_itl_ms, outcome.max_itl_ms, outcome.median_e2el_ms, outcome.p99_e2el_ms,
    )  # fmt: skip
    hit_rate = outcome.prefix_cache_hit_rate
    return (
        *map(milliseconds, latencies),
        f"{outcome.output_throughput:.1f}",
        f"{outcome.request_throughput:.3f}",
        str(outcome.num_preemptions.get("recompute", 0)),
        str(outcome.num_preemptions.get("swap", 0)),
        "-" if hit_rate is None else f"{hit_rate:.1%}",
        f"{outcome.duration:.1f} s",
        str(outcome.completed),
        str(sum(outcome.refused.values())),
        str(outcome.timed_out),
    )


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def _remarks(comparison: Comparison) -> list[str]:
    """Lines about equal decisions, refusals, fallbacks and failed policies, which the user must not
    miss."""
    found = []
    for group in comparison.same_decisions:
        names = " | ".join(describe(comparison.settings[index]) for index in group)
        steps = comparison.outcomes[group[0]].num_steps
        found.append(f"never decided differently, in all {steps} steps: {names}")
    for settings, outcome, examples in zip(
        comparison.settings, comparison.outcomes, comparison.examples, strict=True
    ):
        name = describe(settings)
        for reason, count in outcome.refused.items():
            found.append(f"{name}: {count} refused ({reason}), for example: {examples[reason]}")
        if outcome.num_swap_fallbacks:
            count = outcome.num_swap_fallbacks
            found.append(f"{name}: {count} swaps became recomputations: host memory was full")
        if outcome.failed:
            found.append(f"{name}: {outcome.failed} requests failed")
        for where, count in outcome.plugin_failures.items():
            found.append(
                f"{name}: {where} failed {count} times, and a built-in policy decided instead; "
                f"the first failure: {examples[where]}"
            )
    return ["", *found] if found else []


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
