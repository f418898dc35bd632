"""What came out of a comparison: medians, ratios to the best peer, a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines import WORKLOADS

NOISY = 0.05
"""Part of all cores taken by others, from which on a figure is marked."""
_TITLES = {
    "single": "single stream",
    "batch-8": "batch 8",
    "batch-32": "batch 32",
    "mixed": "mixed, 32 requests",
    "prefill-512": "prefill 512",
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One workload of one engine, once."""

    engine: str
    precision: str
    workload: str
    figures: dict[str, float]
    seconds: float
    foreign_share: float
    """Part of all cores that others took meanwhile, 0 to 1."""
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The rounds of one workload of one engine, in tokens per second."""

    median: float
    lowest: float
    highest: float
    rounds: int
    noisy_rounds: int
    time_to_first_token: float | None
    """Seconds, median."""
    client_cpu_share: float | None
    """Of one core, where a client sat beside the engine."""


def summarize(measurements: Sequence[Measurement]) -> Summary:
    """Of one engine, precision and workload."""
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
    """By "engine precision", then by workload."""
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
    own = found.get(f"tokenmill {precision}", {}).get(workload)
    peers = {
        label.removesuffix(f" {precision}"): summaries[workload].median
        for label, summaries in found.items()
        if label.endswith(precision) and not label.startswith("tokenmill") and workload in summaries
    }
    if own is None or not peers:
        return None
    best = max(peers, key=lambda name: peers[name])
    return own.median / peers[best], best


def markdown(measurements: Sequence[Measurement]) -> str:
    """The table for README: tokens per second, medians; * marks noisy ones."""
    found = summarize_all(measurements)
    lines = [
        "| tokens per second | " + " | ".join(_TITLES[w] for w in WORKLOADS) + " |",
        "|---|" + "---|" * len(WORKLOADS),
    ]
    for precision in dict.fromkeys(m.precision for m in measurements):
        for label, summaries in found.items():
            if label.endswith(precision):
                cells = [_cell(summaries.get(workload)) for workload in WORKLOADS]
                lines.append(f"| {label} | " + " | ".join(cells) + " |")
        cells = [_ratio_cell(ratio(found, precision, workload)) for workload in WORKLOADS]
        lines.append(f"| **tokenmill / best peer, {precision}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(measurements: Sequence[Measurement], path: Path) -> None:
    """Bars per workload, an SVG file."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    found = summarize_all(measurements)
    figure, axes = pyplot.subplots(1, len(WORKLOADS), figsize=(15, 4))
    for axis, workload in zip(axes, WORKLOADS, strict=True):
        bars = {label: s[workload] for label, s in found.items() if workload in s}
        colors = ["#d1495b" if label.startswith("tokenmill") else "#8d99ae" for label in bars]
        heights = [s.median for s in bars.values()]
        spread = [
            [s.median - s.lowest for s in bars.values()],
            [s.highest - s.median for s in bars.values()],
        ]
        axis.bar(range(len(bars)), heights, yerr=spread, color=colors)
        axis.set_xticks(range(len(bars)), list(bars), rotation=90, fontsize=7)
        axis.set_title(_TITLES[workload], fontsize=9)
    axes[0].set_ylabel("tokens per second")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _median_of(name: str, measurements: Sequence[Measurement]) -> float | None:
    values = [m.figures[name] for m in measurements if name in m.figures]
    return statistics.median(values) if values else None


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{summary.median:.0f}" + ("*" if summary.noisy_rounds * 2 > summary.rounds else "")


def _ratio_cell(found: tuple[float, str] | None) -> str:
    return "" if found is None else f"**{found[0]:.2f}x** {found[1]}"
