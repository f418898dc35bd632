"""Says of two benchmark files which is faster, as far as the spread of their requests allows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ConfigError

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
_TIMES = {"TTFT": "ttfts", "E2EL": "latencies"}
"""Titles, with the fields that have a time per request."""
_LOAD = (
    *("endpoint_type", "dataset_name", "dataset_path", "num_prompts", "input_len", "output_len"),
    *("prefix_len", "random_range_ratio", "request_rate", "burstiness", "max_concurrency"),
    *("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
)
"""Fields that say what was sent. Files of other programs have some of them."""
_LENGTHS = {"input tokens": "input_lens", "output tokens": "output_lens"}
MAX_LENGTH_DIFFERENCE = 0.05
"""Maximum difference of mean lengths at which two loads count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of two files."""

    name: str
    first: float
    second: float
    ratio: float
    """Second divided by first; the figures are times, so below 1 the second is faster."""
    low: float
    high: float
    """The interval in which the ratio lies with a confidence of 95 %."""

    @property
    def verdict(self) -> str:
        """ "faster" or "slower", for the second file, or "not distinguishable"."""
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "not distinguishable"


def read_result(path: Path) -> Mapping[str, Any]:
    """Read a file that `bench serve --save-result --save-detailed` wrote. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict) or "duration" not in found:
        raise ConfigError(f"{path} is not a result of `bench serve`")
    missing = [name for name in ("ttfts", "itls", "latencies", "output_lens") if name not in found]
    if missing:
        raise ConfigError(
            f"{path} has no times of single requests ({', '.join(missing)}): make it with "
            "--save-result and --save-detailed"
        )
    return found


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Comparison]:
    """Compare median times of requests, by resampling them (Efron, 1979).

    Requests of one run are not independent of each other, so two runs of the same server may look
    different: repeat each run, and compare those, too.
    """
    for name, field in _TIMES.items():
        yield _compare(name, _ok(first, first[field]), _ok(second, second[field]))
    yield _compare("TPOT", _tpots(first), _tpots(second))


def load_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """The differences of the loads of two files, as far as both files state them."""
    for name in _LOAD:
        if name in first and name in second and first[name] != second[name]:
            yield f"{name} {_shown(first[name])} and {_shown(second[name])}"
    for title, name in _LENGTHS.items():
        one, other = (_ok(result, result.get(name, [])) for result in (first, second))
        if len(one) and len(other):
            means = float(np.mean(one)), float(np.mean(other))
            if max(means) - min(means) > MAX_LENGTH_DIFFERENCE * max(means):
                yield f"{title} per request {means[0]:.1f} and {means[1]:.1f}"


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _compare(name: str, first: np.ndarray, second: np.ndarray) -> Comparison:
    if not len(first) or not len(second):
        raise ConfigError(f"one of the files has no request with a {name}")
    rng = np.random.default_rng(0)
    medians = [
        np.median(rng.choice(values, (NUM_RESAMPLES, len(values))), axis=1)
        for values in (first, second)
    ]
    ratios = medians[1] / np.maximum(medians[0], 1e-9)
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(ratios, [tail, 100 - tail])
    one, other = float(np.median(first)), float(np.median(second))
    return Comparison(
        name=name,
        first=one * 1000,
        second=other * 1000,
        ratio=other / max(one, 1e-9),
        low=float(low),
        high=float(high),
    )


def _ok(result: Mapping[str, Any], values: list[float]) -> np.ndarray:
    errors = (result.get("errors") if values else None) or [""] * len(values)
    return np.array([v for v, error in zip(values, errors, strict=True) if not error])


def _tpots(result: Mapping[str, Any]) -> np.ndarray:
    counts = np.array(result["output_lens"])
    spent = np.array(result["latencies"]) - np.array(result["ttfts"])
    errors = np.array([bool(error) for error in result.get("errors") or [""] * len(counts)])
    chosen = (counts > 1) & ~errors
    tpots: np.ndarray = spent[chosen] / (counts[chosen] - 1)
    return tpots
