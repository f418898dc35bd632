"""`tokenmill bench sweep` and `startup`: the options of vLLM's, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.api.cli import main, make_parser

STARTUP = ("--num-iters-cold", "--num-iters-warmup", "--num-iters-warm", "--output-json")
"""Of `vllm bench startup` 0.32, apart from those of its engine."""
SWEEP = (
    *("--after-bench-cmd", "--server-ready-timeout", "--serve-params", "--link-vars"),
    *("--bench-params", "-o", "--output-dir", "-e", "--experiment-name", "--num-runs"),
    *("--warmup-num-prompts", "--show-stdout", "--continue-on-error", "--dry-run", "--resume"),
)
"""Of `vllm bench sweep serve` 0.32."""
SWEEP_STARTUP = (
    *("--startup-cmd", "--serve-params", "--startup-params", "--strict-params", "-o"),
    *("--output-dir", "-e", "--experiment-name", "--num-runs", "--show-stdout", "--dry-run"),
    "--resume",
)
"""Of `vllm bench sweep startup` 0.32."""
SWITCHES = ("--show-stdout", "--continue-on-error", "--dry-run", "--resume", "--strict-params")
COMMANDS = ["--serve-cmd", "tokenmill serve m", "--bench-cmd", "tokenmill bench serve"]


@pytest.mark.parametrize("option", STARTUP)
def test_an_option_of_vllm_s_startup_is_read(option: str) -> None:
    args = make_parser().parse_args(["bench", "startup", option, "7"])
    assert str(getattr(args, option[2:].replace("-", "_"))) == "7"


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *((("serve", *COMMANDS), option) for option in SWEEP),
        *((("startup",), option) for option in SWEEP_STARTUP),
    ],
)
def test_an_option_of_vllm_s_sweep_is_read(kind: tuple[str, ...], option: str) -> None:
    words = [option] if option in SWITCHES else [option, "7"]
    args = make_parser().parse_args(["bench", "sweep", *kind, *words])
    value = True if option in SWITCHES else 7
    assert value in vars(args).values() or "7" in map(str, vars(args).values())


def test_a_dry_run_prints_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*COMMANDS, "--dry-run", "-o", str(tmp_path), "-e", "x", "--num-runs", "1"]
    sets = ["--serve-params", '[{"max_num_seqs": 8}]', "--bench-params", '{"slow": {"seed": 1}}']
    assert main(["bench", "sweep", "serve", *words, *sets]) == 0
    folder = tmp_path / "x/SERVE--max_num_seqs=8-BENCH--slow"
    assert capsys.readouterr().out.splitlines() == [
        "tokenmill serve m --max-num-seqs 8",
        "  tokenmill bench serve --seed 1 --percentile-metrics ttft,tpot,itl,e2el --save-result "
        f"--result-dir {folder} --result-filename run=0.json",
    ]
    assert not folder.exists()


def test_options_that_a_start_does_not_have_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["--serve-params", '[{"port": 1, "dtype": "auto"}, {"port": 2, "dtype": "auto"}]']
    words = ["bench", "sweep", "startup", *sets, "-o", str(tmp_path), "-e", "x", "--dry-run"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    path = tmp_path / "x/SERVE--dtype=auto/run=0.json"
    assert out == f"tokenmill bench startup --dtype auto --output-json {path}\n"
    assert err == "note: --serve-params: `bench startup` has no option port\n" * 2
    assert main([*words, "--strict-params"]) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["sweep", "serve", *COMMANDS, "--num-runs", "0"], "--num-runs must be at least 1"),
        (["sweep", "serve", *COMMANDS, "-e", "x", "--resume"], "does not exist: remove --resume"),
        (
            ["sweep", "serve", "--serve-cmd", "'", "--bench-cmd", "b"],
            "--serve-cmd cannot",
        ),
        (
            ["sweep", "serve", *COMMANDS, "--dry-run", "--link-vars", "a=b"],
            "--serve-params have no options",
        ),
        (["startup", "--num-iters-warmup", "-1"], "--num-iters-warmup must be at least 0"),
        (["startup", "--num-iters-cold", "0", "--num-iters-warm", "0"], "are both 0"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and reason in line
