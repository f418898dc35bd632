"""`tokenmill tune` from flags to a file that `serve` reads."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.planning.planning import make_times
from tests.tuning.tuning import CLIFF
from tokenmill.api.cli import main
from tokenmill.api.commands.tune.report import command_line
from tokenmill.bench.running import Answer, Run
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress
from tokenmill.planning.workload import PlannedRequest
from tokenmill.tuning import rounds
from tokenmill.tuning.limits import Limits
from tokenmill.tuning.rounds import Measuring, Round

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


def test_rounds_are_measured_on_real_servers_once(tmp_path: Path) -> None:
    config = tmp_path / "given.yaml"
    config.write_text("num-gpu-blocks-override: 16\n")
    requests = [PlannedRequest(at=0.0, prompt_token_ids=(5, 6, 7), max_tokens=2)] * 2
    measuring = Measuring(requests=requests, limits=Limits(), vocab_size=9, folder=tmp_path)
    [found] = measuring.measure({"given": config}, 1, no_progress)
    assert found.goodput > 0 and not found.error
    assert measuring.measure({"given": config}, 1, no_progress) == [found]
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1, "nothing is repeated"
    config.write_text("max-num-seqs: 1\n")
    other = measuring.measure({"given": config}, 0, no_progress)
    assert other == [], "rounds of other settings do not count"


@pytest.mark.check  # it starts two servers
def test_finalists_are_measured_on_real_servers(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--num-prompts", "4", "--rounds", "1", "--finalists", "1", *VARY)
    assert tune(tmp_path / "tune", times, *words) == 0
    assert "measured" in capsys.readouterr().out
    file = tmp_path / "tune/rounds.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["candidate"] for one in found] == ["given", "tuned"]
    assert all(one["goodput"] > 0 for one in found)
    assert tune(tmp_path / "tune", times, *words) == 0, "nothing is measured again"
    assert len(file.read_text().splitlines()) == 2


def test_settings_that_cannot_be_simulated_are_measured_with_the_best_ones(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    def serving(config: Path, log: Path) -> Any:
        served.append(config.read_text())
        return contextlib.nullcontext(config.stem)

    async def send(measuring: Measuring, url: str, progress: object) -> Run:
        answers = [Answer(start=0.0, num_prompt_tokens=1, num_output_tokens=1)]
        return Run(answers=answers, seconds=1.0 if "ngram" in url else 2.0, client_share=0.0)

    monkeypatch.setattr(rounds, "_serving", serving)
    monkeypatch.setattr(Measuring, "_send", send)
    words = ("--rounds", "2", "--measure", "speculative_method=ngram,none")
    assert tune(tmp_path / "tune", times, *words, "--finalists", "1", *VARY) == 0
    assert served[0] == "{}\n" and len(served) == 8
    assert served[2] == 'max-num-batched-tokens: 128\nspeculative-method: "ngram"\n'
    assert (tmp_path / "tune/serve.yaml").read_text() == served[2]
    assert "--max-num-batched-tokens 128 --speculative-method ngram" in capsys.readouterr().out


def test_without_a_better_setting_the_given_ones_are_measured_with_the_variants(
    tmp_path: Path, times: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[list[str]] = []

    def measure(self: Measuring, files: dict[str, Path], *args: object) -> list[Round]:
        measured.append([file.read_text() for file in files.values()])
        return [Round(candidate=name, load="", goodput=1.0) for name in files]

    monkeypatch.setattr(Measuring, "measure", measure)
    words = ("--max-num-batched-tokens", "128", "--vary", "max_num_seqs=4")
    assert tune(tmp_path / "tune", times, *words, "--measure", "data-parallel-size=2") == 0
    given = "max-num-batched-tokens: 128\n"
    assert measured == [[given, f"{given}data-parallel-size: 2\n"]]
    assert (tmp_path / "tune/serve.yaml").read_text() == given


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--measure", "max_num_seqs=4"], "--measure max_num_seqs=4: max_num_seqs is simulated"),
        (["--measure", "data_parallel_size=0"], "data-parallel-size"),
        (["--measure", "dtype=bfloat16", "--rounds", "0"], "--measure needs measurements"),
    ],
)
def test_a_variant_that_cannot_be_measured_is_one_line(
    words: list[str],
    reason: str,
    tmp_path: Path,
    times: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tune(tmp_path / "tune", times, *words, *VARY) == 1
    assert reason in capsys.readouterr().err


def test_a_finalist_that_does_not_start_loses_and_the_report_is_written(
    tmp_path: Path, times: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def serving(config: Path, log: Path) -> Any:
        if config.stem == "given":
            return contextlib.nullcontext("url")
        raise ConfigError(f"the server did not start: see {log}")

    async def send(*args: object) -> Run:
        return Run(answers=[Answer(start=0.0, num_prompt_tokens=1)], seconds=1.0, client_share=0.0)

    monkeypatch.setattr(rounds, "_serving", serving)
    monkeypatch.setattr(Measuring, "_send", send)
    assert tune(tmp_path / "tune", times, "--rounds", "1", *VARY) == 0
    assert "the server did not start: see" in capsys.readouterr().out
    assert json.loads((tmp_path / "tune/report.json").read_text())["is_better"] is False
    assert (tmp_path / "tune/serve.yaml").read_text() == "{}\n"


def test_the_command_line_is_for_a_shell() -> None:
    line = command_line({"model": "my model", "hf_overrides": {"a": 1}}, {"ui": False, "seed": 3})
    assert line == "tokenmill serve 'my model' --hf-overrides '{\"a\": 1}' --no-ui --seed 3"
