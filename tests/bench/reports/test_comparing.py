"""Which of two results is faster."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tokenmill.bench.reports.comparing import compare, load_differences, read_result
from tokenmill.core.errors import ConfigError


def result(scale: float, seed: int, count: int = 60) -> dict[str, Any]:
    rng = random.Random(seed)
    ttfts = [scale * rng.uniform(0.8, 1.2) for _ in range(count)]
    return {
        "duration": 1.0,
        "ttfts": [*ttfts, 0.0],
        "itls": [[]] * (count + 1),
        "latencies": [*(ttft + scale * 9 * rng.uniform(0.9, 1.1) for ttft in ttfts), 0.0],
        "output_lens": [10] * count + [0],
        "errors": [""] * count + ["failed"],
    }


def verdicts(first: dict[str, Any], second: dict[str, Any]) -> dict[str, str]:
    return {one.name: one.verdict for one in compare(first, second)}


def test_a_difference_that_is_larger_than_the_spread_is_said() -> None:
    assert set(verdicts(result(1.0, 1), result(0.8, 2)).values()) == {"faster"}
    assert set(verdicts(result(1.0, 1), result(1.3, 2)).values()) == {"slower"}


def test_equal_servers_are_not_distinguishable() -> None:
    """In nearly all of 40 pairs: the confidence is 95 %."""
    found = [
        verdict
        for seed in range(40)
        for verdict in verdicts(result(1.0, seed), result(1.0, seed + 1000)).values()
    ]
    assert found.count("not distinguishable") >= 0.85 * len(found)


def test_the_ratio_is_that_of_the_medians() -> None:
    for one in compare(result(1.0, 3, 500), result(2.0, 4, 500)):
        assert one.ratio == pytest.approx(2.0, rel=0.1)
        assert one.low < one.ratio < one.high


def test_loads_that_differ_are_named() -> None:
    sent = {"dataset_name": "random", "num_prompts": 60, "request_rate": "inf", "input_len": 64}
    first = result(1.0, 1) | sent | {"input_lens": [64] * 60 + [0], "max_concurrency": None}
    assert not [*load_differences(first, result(0.8, 2) | sent)]
    close = {"input_lens": [66] * 60 + [0], "model_id": "another", "max_concurrency": None}
    assert not [*load_differences(first, result(0.8, 2) | sent | close)]
    other = {
        "dataset_name": "sharegpt",
        "num_prompts": 50,
        "request_rate": 4.0,
        "input_lens": [640] * 60 + [0],
        "output_lens": [20] * 60 + [0],
        "max_concurrency": 8,
    }
    assert [*load_differences(first, result(0.8, 2) | sent | other)] == [
        "dataset_name random and sharegpt",
        "num_prompts 60 and 50",
        "request_rate inf and 4.0",
        "max_concurrency none and 8",
        "input tokens per request 64.0 and 640.0",
        "output tokens per request 10.0 and 20.0",
    ]


def test_a_file_without_the_times_of_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"duration": 1.0}))
    with pytest.raises(ConfigError, match="--save-detailed"):
        read_result(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is not a result"):
        read_result(path)
