"""A report as one HTML file, which loads nothing else and has no scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from .charts import bars, histogram, intervals, scatter
from .comparing import Comparison
from .figures import DETAILS, METRICS

Parts = Iterator[tuple[str, str]]
"""Titles, with the HTML below them."""

_STYLE = """
:root { color-scheme: light dark; --text: #1c1d1f; --soft: #666a70; --back: #fff; --line: #d5d8dc;
  --mark: #2563c9; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e7e9; --soft: #9ba0a6; --back: #16181b;
  --line: #3a3e44; --mark: #7fb0ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  margin: 0 auto; max-width: 62rem; padding: 1rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem 1rem .15rem 0;
  border-bottom: 1px solid var(--line); } td.number { text-align: right;
  font-variant-numeric: tabular-nums; } th { font-weight: 600; }
svg { width: 100%; max-width: 560px; height: auto; fill: var(--mark); }
svg text { font-size: 11px; fill: var(--soft); } .axis { fill: none; stroke: var(--line); }
.mark { stroke: var(--mark); stroke-width: 2; }
.series { fill: none; stroke-width: 1.5; } .one { stroke: var(--soft); stroke-dasharray: 3 3; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 0 2rem; } h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; } section { overflow-x: auto; }
"""


def serve_page(result: Mapping[str, Any]) -> str:
    """The report of `bench serve`; `result` has the details of single requests."""
    return page(f"Serving benchmark of {result['model_id']}", _serve_parts(result))


def fields_page(title: str, fields: Mapping[str, Any]) -> str:
    """The report of `bench throughput`, `latency` or `startup`: all figures, and a chart of each
    list of times."""
    return page(title, _fields_parts(fields))


def compare_page(found: Sequence[Comparison], first: str, second: str, warning: str = "") -> str:
    """The report of `bench compare`."""
    rows = [
        (one.name, f"{one.first:.2f}", f"{one.second:.2f}", f"{one.ratio:.3f}", one.verdict)
        for one in found
    ]
    heads = ("median time", f"{first} (ms)", f"{second} (ms)", "ratio", f"{second} is")
    chart = intervals([(o.name, o.low, o.ratio, o.high) for o in found], f"{second} / {first}")
    parts = [("Medians", table(heads, rows)), ("Ratios, with 95 % intervals", chart)]
    if warning:
        parts.insert(0, ("Warning", f"<p>{escape(warning)}</p>"))
    return page(f"{first} and {second}", iter(parts))


def _serve_parts(result: Mapping[str, Any]) -> Parts:
    plain = {n: v for n, v in result.items() if n not in DETAILS and v is not None}
    metrics = {name: title for name, (_, title) in METRICS.items() if f"mean_{name}_ms" in plain}
    suffixes = [f"_{name}_ms" for name in metrics]
    others = {n: v for n, v in plain.items() if not n.endswith(tuple(suffixes))}
    yield "Run", table(("field", "value"), others.items())
    if metrics:
        first = suffixes[0]
        kinds = [name.removesuffix(first) for name in plain if name.endswith(first)]
        rows = [
            (title, *(f"{plain[f'{kind}_{name}_ms']:.2f}" for kind in kinds))
            for name, title in metrics.items()
        ]
        yield "Times (ms)", table(("time", *kinds), rows)
    is_ok = [not error for error in result["errors"]]
    times = {
        "TTFT (ms)": _milliseconds(result["ttfts"], is_ok),
        "E2EL (ms)": _milliseconds(result["latencies"], is_ok),
        "ITL (ms)": [gap * 1000 for gaps in result["itls"] for gap in gaps],
    }
    begin = min(result["start_times"])
    starts = [start - begin for start, ok in zip(result["start_times"], is_ok, strict=True) if ok]
    for name, values in times.items():
        if values:
            yield name, histogram(values, name)
    for name in ("TTFT (ms)", "E2EL (ms)"):
        if times[name]:
            yield f"{name} over time", scatter(starts, times[name], "start (s)", name)


def _fields_parts(fields: Mapping[str, Any]) -> Parts:
    plain = {name: value for name, value in fields.items() if isinstance(value, str | int | float)}
    yield "Figures", table(("field", "value"), plain.items())
    for name, value in fields.items():
        if name.endswith("_phases"):
            rows = [(phase, f"{np.mean(seconds):.2f}") for phase, seconds in value.items()]
            yield name.replace("_", " "), table(("phase", "mean (s)"), rows)
        elif isinstance(value, list) and value and max(value) > 0:
            yield f"{name.replace('_', ' ')} (s)", bars(value, "iteration", name)


def _milliseconds(seconds: Sequence[float], is_ok: Sequence[bool]) -> list[float]:
    return [one * 1000 for one, ok in zip(seconds, is_ok, strict=True) if ok]


def table(heads: Sequence[str], rows: Any) -> str:
    """A table as HTML. Numbers are justified right."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    is_number = text.replace(".", "", 1).isdecimal()
    return f'<td class="number">{text}</td>' if is_number else f"<td>{escape(text)}</td>"


def page(title: str, parts: Parts) -> str:
    sections = "".join(f"<section><h2>{escape(t)}</h2>{html}</section>" for t, html in parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1><main>{sections}</main></body></html>\n"
    )
