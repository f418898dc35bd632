"""`tokenmill simulate fleet`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.api.cli import main

from ...forked_commands import run_forked

FLEET = ("simulate", "fleet")
SMALL = ("--duration", "20", "--request-rate", "3", "--output-len", "8", "--prefix-len", "64",
         "--input-len", "32", "--replicas", "3", "--start-seconds", "3")  # fmt: skip


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*FLEET, "--json", *SMALL, *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_has_a_column_for_each_router_and_a_warning_of_foreign_step_times() -> None:
    done = run_forked(*FLEET, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "warning: these are BUNDLED step times" in done.stderr
    header = next(line for line in done.stdout.splitlines() if "router=" in line)
    assert header.split() == ["router=least-loaded", "router=prefix-aware"]
    rows = {line[:26].strip(): line[26:].split() for line in done.stdout.splitlines()}
    assert rows["replicas"] == ["3", "3"] and rows["ended with an error"] == ["0", "0"]
    assert rows["requests"] == rows["completed"]


def test_the_same_seed_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    events = (
        "--router",
        "least-loaded",
        "--lose",
        "5=0-1",
        "--arrivals",
        "day",
        "--period",
        "20",
        "--update-at",
        "12",
    )
    first = run_json(capsys, *events)
    assert first == run_json(capsys, *events) != run_json(capsys, *events, "--seed", "1")
    document = json.loads(first)
    assert [one["replicas_lost"] for one in document["results"]] == [2, 0]
    assert document["results"][0]["policy"] == {"router": "least-loaded"}
    assert document["remarks"][0].startswith("router=least-loaded: the loss of 2 replicas costs ")


def test_settings_of_the_engine_are_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    varied = ("--router", "round-robin", "--vary", "scheduler=chunked,prefill-first")
    results = json.loads(run_json(capsys, *varied))["results"]
    assert [one["policy"] for one in results] == [
        {"router": "round-robin", "scheduler": "chunked"},
        {"router": "round-robin", "scheduler": "prefill-first"},
    ]
    assert results[0]["mean_ttft_ms"] != results[1]["mean_ttft_ms"]


def test_the_search_answers_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    search = ("--find-replicas", "--router", "least-loaded", "--max-replicas", "8", "--goodput",
              "ttft:250", "--goal", "0.9", "--request-rate", "12")  # fmt: skip
    [found] = json.loads(run_json(capsys, *search))["results"]
    number = found["replicas"]
    assert number > 1 and found["goodput"] >= 0.9 > found["tried"][str(number - 1)]


def test_the_page_has_figures_charts_and_no_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.html"
    run_json(capsys, "--lose", "5=0", "--html", str(path), "--router", "prefix-aware")
    page = path.read_text()
    assert "<script" not in page and "http" not in page
    for text in ("router=prefix-aware, 1 lost", "TTFT p99", "the loss of 1 replicas costs"):
        assert text in page
    assert page.count("<polyline") == 2 * 6  # two runs in six charts


def test_a_recorded_workload_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests.jsonl"
    rows = [
        {
            "at": 0.1 * number,
            "num_prompt_tokens": 64,
            "max_tokens": 4,
            "session_id": f"s{number % 2}",
        }
        for number in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    [found] = json.loads(run_json(capsys, "--workload", str(path), "--router", "session"))[
        "results"
    ]
    assert found["completed"] == 20 and found["imbalance"] >= 1.5  # two sessions, three replicas


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lose", "soon=1"), "--lose must be TIME=FIRST-LAST"),
        (("--lose", "1=4-2"), "--lose must name replicas from 0 in order"),
        (("--lose", "1=2-3"), "--lose names replica 3, but the fleet has only the replicas 0 to 2"),
        (("--find-replicas", "--max-replicas", "0"), "--max-replicas must be at least 1"),
        (("--autoscale", "cpu=3"), "--autoscale must be requests=N or kv=N"),
        (("--autoscale", "kv"), "target and interval must be positive"),
        (("--router", "best"), "best"),
        (("--find-replicas", "--goal", "2"), "--goal must be in (0, 1]"),
        (("--find-replicas", "--lose", "1=0"), "--find-replicas takes no"),
        (("--request-rate", "0"), "--request-rate must be positive"),
        (("--tenants", "0"), "--tenants must be at least 1"),
    ],
)
def test_wrong_flags_are_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FLEET, *SMALL, *arguments]) != 0
    found = capsys.readouterr()
    assert message in found.err and found.out == "" and "Traceback" not in found.err
