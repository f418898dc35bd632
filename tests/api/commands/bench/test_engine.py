"""`tokenmill bench throughput` and `latency` with the default model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill.api.cli import main

ENGINE = ["--output-len", "4", "--input-len", "12", "--disable-log-stats", "--n", "2"]


def test_throughput_counts_all_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    words = ["--num-prompts", "3", "--max-num-queued-reqs", "1", "--output-json", str(path)]
    assert main(["bench", "throughput", *ENGINE, *words]) == 0
    text = capsys.readouterr().out
    assert "Total num prompt tokens:  36" in text and "Total num output tokens:  24" in text
    fields = json.loads(path.read_text())
    assert (fields["num_requests"], fields["total_num_tokens"]) == (3, 60)
    assert fields["tokens_per_second"] == pytest.approx(60 / fields["elapsed_time"])


def test_latency_is_that_of_the_measured_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "l.json"
    words = ["--num-iters", "3", "--num-iters-warmup", "1", "--output-json", str(path)]
    words += ["--html", str(tmp_path / "l.html")]
    assert main(["bench", "latency", *ENGINE, "--batch-size", "2", *words]) == 0
    assert "Avg latency: " in capsys.readouterr().out
    fields = json.loads(path.read_text())
    assert len(fields["latencies"]) == 3
    assert f"{fields['avg_latency']:.6g}" in (tmp_path / "l.html").read_text()
    assert min(fields["latencies"]) <= fields["percentiles"]["50"] <= max(fields["latencies"])


def test_throughput_has_lengths_without_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "throughput", "--async-engine", "some/model", "--n", "0"]) == 1
    assert capsys.readouterr().err == "error: --n must be at least 1\n"


def test_a_wrong_number_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--batch-size", "0"]) == 1
    assert capsys.readouterr().err == "error: --batch-size must be at least 1\n"


def test_a_model_without_weights_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m", TARGET, 0)
    (model / "model.safetensors").unlink()
    words = ["bench", "throughput", str(model), *ENGINE, "--num-prompts", "2"]
    assert main([*words, "--load-format", "dummy"]) == 0
    assert "Total num output tokens:  16" in capsys.readouterr().out
    (model / "tokenizer.json").unlink()
    assert main([*words, "--load-format", "dummy"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith("no tokenizer.model: name that of another model with --tokenizer")
