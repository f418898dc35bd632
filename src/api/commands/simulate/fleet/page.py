"""The report of `tokenmill simulate fleet` as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .....bench.reports.charts import lines
from .....bench.reports.page import Parts, page, table
from .....core.errors import ConfigError
from .report import ROWS, Column, cells, describe_load, remarks

if TYPE_CHECKING:
    from .....planning.fleet.outcome import Moment


def write_page(path: Path, load: Mapping[str, Any], source: str, columns: Sequence[Column]) -> None:
    """Write the page. Raises ConfigError if that fails."""
    try:
        path.write_text(page("A fleet on paper", _parts(load, source, columns)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path} cannot be written: {error.strerror}") from error


def _parts(load: Mapping[str, Any], source: str, columns: Sequence[Column]) -> Parts:
    yield "Load", table(("", ""), [("load", describe_load(load)), ("step times", source)])
    found = list(remarks(columns))
    if found:
        yield "Remarks", table(("",), [(line,) for line in found])
    titles = [one.title for one in columns]
    figures = zip(*map(cells, columns), strict=True)
    rows = [(name, *row) for name, row in zip(ROWS, figures, strict=True)]
    yield "Figures", table(("", *titles), rows)
    for name, value in _CHARTS.items():
        series = [(one.title, list(_points(one, value))) for one in columns]
        if any(points for _, points in series):
            yield f"{name} over time", lines(series, "seconds", name)


def _points(
    column: Column, value: Callable[[Moment], float | None]
) -> Iterator[tuple[float, float]]:
    for moment in column.outcome.moments:
        found = value(moment)
        if found is not None:
            yield moment.at, found


_CHARTS: Mapping[str, Callable[[Moment], float | None]] = {
    "Requests that arrived": lambda one: one.num_arrived,
    "TTFT p50 (ms)": lambda one: one.median_ttft_ms,
    "TTFT p99 (ms)": lambda one: one.p99_ttft_ms,
    "Fraction of good requests": lambda one: (
        one.num_good / one.num_arrived if one.num_arrived else None
    ),
    "Requests that ended with an error": lambda one: one.num_failed,
    "Replicas that serve": lambda one: one.num_serving,
}
