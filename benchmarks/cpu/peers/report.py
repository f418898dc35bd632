"""Reports a comparison: medians, ratios to the best peer, and a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from instruction_sets import InstructionSet, note

NOISY = 0.05
"""Fraction of all cores used by other processes above which a figure is marked as noisy."""
_TITLES = {
    "single": "single stream",
    "batch-8": "batch 8",
    "batch-32": "batch 32",
    "mixed": "mixed, 32 requests",
    "prefill-512": "prefill 512",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measurement of one workload and engine."""

    engine: str
    precision: str
    workload: str
    figures: dict[str, float]
    seconds: float
    foreign_share: float
    """Fraction of all cores that other processes used meanwhile, 0 to 1."""
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All rounds of one workload and engine, in tokens per second."""

    median: float
    lowest: float
    highest: float
    rounds: int
    noisy_rounds: int
    time_to_first_token: float | None
    """Seconds, median."""
    client_cpu_share: float | None
    """Fraction of one core that the HTTP client used; None without a client."""


def summarize(measurements: Sequence[Measurement]) -> Summary:
    """Summarize the measurements of one engine, precision and workload."""
    speeds = [m.figures["tokens_per_second"] for m in measurements]
    return Summary(
        median=statistics.median(speeds),
        lowest=min(speeds),
        highest=max(speeds),
        rounds=len(speeds),
        noisy_rounds=sum(m.foreign_share > NOISY for m in measurements),
        time_to_first_token=_median_of("time_to_first_token", measurements),
        client_cpu_share=_median_of("client_cpu_share", measurements),
    )


def summarize_all(measurements: Iterable[Measurement]) -> dict[str, dict[str, Summary]]:
    """Summaries by "engine precision", then by workload."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((f"{one.engine} {one.precision}", one.workload), []).append(one)
    found: dict[str, dict[str, Summary]] = {}
    for (label, workload), group in groups.items():
        found.setdefault(label, {})[workload] = summarize(group)
    return found


def ratio(
    found: dict[str, dict[str, Summary]], precision: str, workload: str
) -> tuple[float, str] | None:
    """tokenmill's median over the best peer's at the same precision, and that peer's name."""
    peers = [
        label.removesuffix(f" {precision}")
        for label, summaries in found.items()
        if label.endswith(precision) and not label.startswith("tokenmill") and workload in summaries
    ]
    if not peers:
        return None
    best = max(peers, key=lambda name: found[f"{name} {precision}"][workload].median)
    value = _over(found, f"tokenmill {precision}", f"{best} {precision}", workload)
    return None if value is None else (value, best)


def markdown(
    measurements: Sequence[Measurement], instruction_set: InstructionSet | None = None
) -> str:
    """The table of docs/performance.md, with notes that explain it."""
    found = summarize_all(measurements)
    titles = [*_TITLES.values(), "first token, ms"]
    lines = [f"| tokens per second | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for precision in dict.fromkeys(m.precision for m in measurements):
        lines += _rows(found, precision)
    sets = [] if instruction_set is None else [note(instruction_set)]
    return "\n".join([*lines, "", *_notes(found), *sets])


def _rows(found: dict[str, dict[str, Summary]], precision: str) -> list[str]:
    """The rows of all engines at one precision, and of tokenmill's ratios."""
    rows = []
    for label, summaries in found.items():
        if label.endswith(precision):
            first = _first_token_cell(summaries.get("single"))
            rows.append((label, *(_cell(summaries.get(name)) for name in _TITLES), first))
    ratios = [ratio(found, precision, name) for name in _TITLES]
    if any(ratios):
        cells = ["" if one is None else f"**{one[0]:.2f}x** {one[1]}" for one in ratios]
        rows.append((f"**tokenmill / best peer, {precision}**", *cells, ""))
    own, http = f"tokenmill {precision}", f"tokenmill HTTP {precision}"
    kept = [_over(found, http, own, name) for name in _TITLES]
    if any(kept):
        cells = ["" if one is None else f"{one:.2f}x" for one in kept]
        rows.append((f"HTTP / offline, {precision}", *cells, ""))
    return [f"| {' | '.join(row)} |" for row in rows]


def _notes(found: dict[str, dict[str, Summary]]) -> list[str]:
    """Notes that explain the cells."""
    notes = [
        "Figures are medians. Single stream and batches: decode only, after prompts of 128 tokens. "
        "First token: of the single stream. Mixed: the whole load. All engines run offline, except "
        "tokenmill HTTP and llama.cpp's mixed load, which have an HTTP client on the same cores. "
        "transformers computes the mixed load as one padded batch."
    ]
    shares = [
        f"{label} {workload} {summary.client_cpu_share:.1%}"
        for label, summaries in found.items()
        for workload, summary in summaries.items()
        if summary.client_cpu_share is not None
    ]
    if shares:
        notes.append(f"The client used this fraction of one core: {', '.join(shares)}.")
    if any(_is_noisy(summary) for summaries in found.values() for summary in summaries.values()):
        notes.append(f"*: other processes used more than {NOISY:.0%} of the cores in most rounds.")
    return notes


def _median_of(name: str, measurements: Sequence[Measurement]) -> float | None:
    values = [m.figures[name] for m in measurements if name in m.figures]
    return statistics.median(values) if values else None


def _over(
    found: dict[str, dict[str, Summary]], one: str, other: str, workload: str
) -> float | None:
    """The ratio of the medians of two labels; None if one of them was not measured."""
    if workload not in found.get(one, {}) or workload not in found.get(other, {}):
        return None
    return found[one][workload].median / found[other][workload].median


def _is_noisy(summary: Summary) -> bool:
    return summary.noisy_rounds * 2 > summary.rounds


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{summary.median:.0f}" + ("*" if _is_noisy(summary) else "")


def _first_token_cell(summary: Summary | None) -> str:
    if summary is None or summary.time_to_first_token is None:
        return ""
    return f"{summary.time_to_first_token * 1e3:.0f}"
