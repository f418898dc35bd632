"""The report for people, out of what a check on a GPU might find."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_report import markdown


def row(contender: str, microseconds: float | None, **changes: Any) -> dict[str, Any]:
    timed: dict[str, Any] = {
        "contender": contender,
        "is_peer": contender.startswith(("flash-kernel", "torch-sdpa")),
        "heads": "8B",
        "workload": "256 x 8k",
        "is_decode": True,
        "num_decodes": 256,
        "bytes": 4_000_000_000,
        "operations": 10**9,
        "method": "graph",
    }
    outcome = {"error": "out of memory"} if microseconds is None else {"microseconds": microseconds}
    return timed | outcome | changes


@pytest.fixture
def found() -> dict[str, Any]:
    check = {"status": "ok", "seconds": 3, "tail": "", "part": "attention", "is_ok": True}
    failed = {
        "test": "test_x[triton]",
        "outcome": "failed",
        "message": "numbers are wrong\nsecond line",
    }
    return {
        "date": "2026-01-01",
        "commit": "abc",
        "rehearsal": False,
        "is_complete": False,
        "seconds": 99,
        "machine": {"gpu": "NVIDIA H200", "copy_gb_per_s": 4000.0, "packages": {"torch": "2.11"}},
        "installed": ["gguf 1 from the bundle"],
        "engines": [
            {"contender": "triton", "mode": "graphs", "num_requests": n, "milliseconds": ms}
            for n, ms in ((1, 2.5), (32, 3.25))
        ],
        "checks": [
            check
            | {
                "name": "torch attention",
                "backend": "torch",
                "tests": [{"outcome": "passed", "max_error": 0.001}],
            },
            check
            | {
                "name": "triton attention",
                "backend": "triton",
                "tests": [failed],
                "status": "failed",
                "is_ok": False,
            },
            check
            | {
                "name": "xformers attention",
                "backend": "xformers",
                "tests": [{"outcome": "skipped", "message": "xformers: not installed"}] * 7,
            },
        ],
        "kernels": [
            row("flash-kernel-16", 1500.0),
            row("flash-kernel-128", 1000.0),
            row("torch-sdpa", 800.0),
            row("cuda-paged", 1250.0),
            row("triton", None),
        ],
        "benchmarks": [
            {"name": "xformers", "status": "crashed", "tail": "Segmentation fault", "seconds": 1}
        ],
    }


def test_tells_what_failed_and_that_it_was_cut_off(found: dict[str, Any]) -> None:
    text = markdown(found)
    assert "CUT OFF" in text and "FAILED: triton attention" in text
    assert "`test_x[triton]`: numbers are wrong" in text and "second line" not in text
    assert "Segmentation fault" in text
    assert "out of memory" in text


def test_skips_are_told_once_and_are_no_success(found: dict[str, Any]) -> None:
    text = markdown(found)
    assert "xformers, 7 tests: xformers: not installed" in text
    assert "attention (nothing could run" in text


def test_ratios_are_to_flash_attention_and_to_the_best_peer(found: dict[str, Any]) -> None:
    text = markdown(found)
    assert "| cuda-paged | decodes / FlashAttention | 1 | 1.25 | 1.25 |" in text
    assert "| cuda-paged | decodes / best peer | 1 | 1.56 | 1.56 |" in text
    assert "80% to 80% of the bandwidth of copies, 4000.0 GB/s" in text
    assert "1250.0 µs, 3200 GB/s (80%), **1.56x**" in text


def test_steps_of_whole_engines_are_a_table(found: dict[str, Any]) -> None:
    text = markdown(found)
    assert "| attention | mode | 1 requests | 32 requests |" in text
    assert "| triton | graphs | 2.50 | 3.25 |" in text


def test_there_is_a_report_before_anything_was_found(found: dict[str, Any]) -> None:
    empty = {"machine": {}, "installed": [], "checks": [], "kernels": [], "benchmarks": []}
    empty["engines"] = []
    assert "all checks that ran have passed" in markdown(found | empty)
