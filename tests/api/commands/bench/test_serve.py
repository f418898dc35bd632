"""`tokenmill bench serve` against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.serving import serve_engine, toy_engine
from tokenmill.api.cli import main


def test_a_server_is_measured_and_the_figures_are_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_engine(toy_engine()) as served:
        words = ["--base-url", served.url, "--num-prompts", "6", "--input-len", "20"]
        words += ["--output-len", "5", "--ignore-eos", "--goodput", "ttft:60000", "--save-result"]
        words += ["--save-detailed", "--result-dir", str(tmp_path), "--metadata", "try=2"]
        words += ["--html", str(tmp_path / "s.html")]
        for backend in ("openai", "openai-chat"):
            name = f"{backend}.json"
            status = main(
                ["bench", "serve", *words, "--backend", backend, "--result-filename", name]
            )
            assert status == 0
            text = capsys.readouterr().out
            assert "Successful requests:                     6" in text
            assert "Total generated tokens:                  30" in text
            result = json.loads((tmp_path / name).read_text())
            assert f"{result['mean_ttft_ms']:.2f}" in (tmp_path / "s.html").read_text()
            assert (result["dataset_name"], result["input_len"]) == ("random", 20)
            assert (result["completed"], result["failed"], result["try"]) == (6, 0, "2")
            assert result["output_lens"] == [5] * 6 and len(result["itls"]) == 6
            assert 0 < result["median_ttft_ms"] <= result["p99_ttft_ms"]
            assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    files = [str(tmp_path / f"{backend}.json") for backend in ("openai", "openai-chat")]
    html = ["--html", str(tmp_path / "c.html")]
    assert main(["bench", "compare", *files, "--json", *html]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("warning: ") and "endpoint_type openai and openai-chat" in err
    assert "endpoint_type openai and openai-chat" in (tmp_path / "c.html").read_text()
    assert main(["bench", "compare", files[0], files[0]]) == 0
    assert not capsys.readouterr().err
    found = json.loads(out)
    assert [one["name"] for one in found] == ["TTFT", "E2EL", "TPOT"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--goodput", "ttft"], "--goodput must be NAME:MILLISECONDS, got 'ttft'"),
        (["--goodput", "itl:5"], "--goodput knows ttft, tpot, e2el, not 'itl'"),
        (["--percentile-metrics", "ttfs"], "unknown 'ttfs'"),
        (["--metric-percentiles", "101"], "from 0 to 100"),
        (["--port", "1"], "127.0.0.1:1"),
        (["--dataset-name", "multi_turn"], "multi_turn needs --backend openai-chat"),
        (["--base-url", "ftp://x"], "--base-url must be like http://127.0.0.1:8000"),
        (["--header", "x"], "--header must be NAME=VALUE, got 'x'"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *words]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and reason in line
