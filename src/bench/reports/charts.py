"""Charts as SVG, whose colours come from the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 200, 56, 34, 10
NUM_BINS = 30
COLOURS = ("#2f74d0", "#d9622b", "#2f9e63", "#a855c7", "#b08900", "#c2386b", "#4a9aa8", "#77797d")
"""Colours of lines that can be read on a light and on a dark page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Maps values to places on the page."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The place of a value, rounded to a tenth of a pixel."""
        fraction = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + fraction * (self.end - self.start), 1)


def histogram(values: Sequence[float], label: str) -> str:
    """Number of values in each of NUM_BINS equal intervals."""
    counts, edges = np.histogram(values, bins=NUM_BINS)
    x, y = _axes(float(edges[0]), float(edges[-1]), 0.0, float(counts.max()))
    bars = []
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        name = f"{_number(low)} to {_number(high)}: {count}"
        width = max(x.at(high) - x.at(low) - 1, 1)
        bars.append(_bar(x.at(low), y.at(count), width, y.start - y.at(count), name))
    return _frame(x, y, "".join(bars), label, f"Histogram: {label}")


def scatter(xs: Sequence[float], ys: Sequence[float], x_label: str, label: str) -> str:
    """One point for each pair of values."""
    x, y = _axes(min(xs), max(xs), 0.0, max(ys))
    points = "".join(
        f'<circle cx="{x.at(one)}" cy="{y.at(other)}" r="2.5">'
        f"<title>{_number(one)}: {_number(other)}</title></circle>"
        for one, other in zip(xs, ys, strict=True)
    )
    return _frame(x, y, points, x_label, f"{label} by {x_label}")


def bars(values: Sequence[float], x_label: str, label: str) -> str:
    x, y = _axes(0.0, float(len(values)), 0.0, max(values))
    drawn = "".join(
        _bar(
            x.at(index),
            y.at(value),
            max(x.at(index + 1) - x.at(index) - 1, 1),
            y.start - y.at(value),
            f"{index + 1}: {_number(value)}",
        )
        for index, value in enumerate(values)
    )
    return _frame(x, y, drawn, x_label, f"{label} by {x_label}")


def lines(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]], x_label: str, label: str
) -> str:
    """A line for each (name, points), in a colour of its own, and their names below each other."""
    points = [point for _, found in series for point in found]
    x, y = _axes(0.0, max(at for at, _ in points), 0.0, max(value for _, value in points))
    drawn = ""
    for index, (name, found) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x.at(at)},{y.at(value)}" for at, value in found)
        drawn += (
            f'<polyline class="series" stroke="{colour}" points="{path}">'
            f"<title>{escape(name)}</title></polyline>"
            f'<text x="{WIDTH - 10}" y="{TOP + 12 * (index + 1)}" text-anchor="end" '
            f'style="fill: {colour}">{escape(name)}</text>'
        )
    return _frame(x, y, drawn, x_label, f"{label} by {x_label}")


def intervals(rows: Sequence[tuple[str, float, float, float]], label: str) -> str:
    """A point between two ends for each (name, low, value, high), and a line at 1."""
    low = min(1.0, *(row[1] for row in rows))
    high = max(1.0, *(row[3] for row in rows))
    x, y = _axes(low, high, 0.0, float(len(rows)))
    one = x.at(1.0)
    drawn = f'<line class="one" x1="{one}" x2="{one}" y1="{y.start}" y2="{y.end}"/>'
    for index, (name, least, value, most) in enumerate(rows):
        at = y.at(len(rows) - index - 0.5)
        drawn += (
            f'<line class="mark" x1="{x.at(least)}" x2="{x.at(most)}" y1="{at}" y2="{at}"/>'
            f'<circle cx="{x.at(value)}" cy="{at}" r="4"><title>{_number(value)}</title></circle>'
            f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{escape(name)}</text>'
        )
    return _frame(x, y, drawn, label, label, has_y=False)


def _axes(x_low: float, x_high: float, y_low: float, y_high: float) -> tuple[Axis, Axis]:
    bottom = HEIGHT - BOTTOM
    x = Axis(low=x_low, high=x_high, start=LEFT, end=WIDTH - 8)
    return x, Axis(low=y_low, high=y_high, start=bottom, end=TOP)


def _bar(x: float, y: float, width: float, height: float, name: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(name)}</title></rect>"
    )


def _frame(x: Axis, y: Axis, drawn: str, x_label: str, name: str, *, has_y: bool = True) -> str:
    """A drawing with its axes, and a name for readers that do not see it."""
    ends = "".join(
        f'<text x="{x.at(value)}" y="{y.start + 14}" text-anchor="{anchor}">{_number(value)}</text>'
        for value, anchor in ((x.low, "start"), (x.high, "end"))
    )
    if has_y:
        ends += "".join(
            f'<text x="{LEFT - 6}" y="{y.at(value) + 4}" text-anchor="end">{_number(value)}</text>'
            for value in (y.low, y.high)
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">'
        f'<path class="axis" d="M{x.start} {y.end}V{y.start}H{x.end}"/>{drawn}{ends}'
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}'
        "</text></svg>"
    )


def _number(value: float) -> str:
    return f"{value:.4g}"
