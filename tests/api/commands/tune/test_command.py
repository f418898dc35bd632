"""`tokenmill tune` from flags to a file that `serve` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planning.planning import make_times
from tests.tuning.tuning import CLIFF
from tokenmill.api.cli import main

WORKLOAD = ("--num-prompts", "8", "--random-input-len", "100", "--random-output-len", "4")
VARY = ("--vary", "max_num_batched_tokens=32,128", "--vary", "max_num_seqs=4,8")


@pytest.fixture
def times(tmp_path: Path) -> str:
    path = tmp_path / "step-time.json"
    make_times(CLIFF, num_blocks=200).write(path)
    return str(path)


def tune(folder: Path, times: str, *words: str) -> int:
    return main(["tune", "-o", str(folder), "--step-time", times, *WORKLOAD, *words])


def test_the_best_settings_are_printed_and_written(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path / "tune", times, "--rounds", "0", *VARY) == 0
    text = capsys.readouterr().out
    assert "tokenmill serve --max-num-batched-tokens 128\n" in text
    assert "--max-num-batched-tokens 128: without it -" in text
    assert (tmp_path / "tune/serve.yaml").read_text() == "max-num-batched-tokens: 128\n"
    report = json.loads((tmp_path / "tune/report.json").read_text())
    assert report["recommended"] == {"max_num_batched_tokens": 128} and report["gain"] is None


def test_an_unreachable_limit_ends_with_none(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rounds", "0", "--goodput", "ttft:0.5", *VARY)
    assert tune(tmp_path / "tune", times, *words) == 1
    assert "none: no setting keeps these limits" in capsys.readouterr().out
    assert (tmp_path / "tune/serve.yaml").read_text() == "{}\n"


def test_given_flags_stay_and_are_not_varied(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rounds", "0", "--trials", "4", "--max-num-batched-tokens", "64", "--json")
    assert tune(tmp_path / "tune", times, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert "max_num_batched_tokens" not in found["settings"]
    assert "--max-num-batched-tokens 64" in found["command"]
    assert "max-num-batched-tokens: 64\n" in (tmp_path / "tune/serve.yaml").read_text()


def test_a_folder_belongs_to_one_search(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path / "tune", times, "--rounds", "0", *VARY) == 0
    assert tune(tmp_path / "tune", times, "--rounds", "0", *VARY) == 0
    assert tune(tmp_path / "tune", times, "--rounds", "0", *VARY, "--goodput", "itl:9") == 1
    assert "holds a search with another workload" in capsys.readouterr().err


def test_cached_prompts_share_their_beginning(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rounds", "0", "--min-cache-hit-pct", "80", "--block-size", "16", *VARY, "--json")
    assert tune(tmp_path / "tune", times, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tuned"]["outcome"]["prefix_cache_hit_rate"] > 0.2


def test_finalists_are_measured_on_real_servers(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--num-prompts", "4", "--rounds", "1", "--finalists", "1", *VARY)
    assert tune(tmp_path / "tune", times, *words) == 0
    assert "measured" in capsys.readouterr().out
    file = tmp_path / "tune/rounds.jsonl"
    rounds = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["candidate"] for one in rounds] == ["given", "tuned"]
    assert all(one["goodput"] > 0 for one in rounds)
    assert tune(tmp_path / "tune", times, *words) == 0, "nothing is measured again"
    assert len(file.read_text().splitlines()) == 2
