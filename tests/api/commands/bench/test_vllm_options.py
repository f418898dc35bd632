"""Each option of `vllm bench` 0.32 works, or is refused in one line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tokenmill.api.cli import make_parser

HERE = Path(__file__).parent / "vllm_options"
"""The options by command, from `vllm bench COMMAND --help=all`. Those in engine.txt are options of
vLLM's engine, which all commands but `serve` have."""
VALUES = [
    [],
    *(
        [one]
        for one in (
            "1",
            "{}",
            "auto",
            "random",
            "vllm",
            "linear",
            "openai",
            "info",
            "none",
            "a=b",
            "ngram",
        )
    ),
]
"""Each option takes no value or one of these."""


def options(name: str) -> list[str]:
    return (HERE / f"{name}.txt").read_text().split()


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return make_parser()


def refusal(
    parser: argparse.ArgumentParser, words: list[str], capsys: pytest.CaptureFixture[str]
) -> str | None:
    """The line with which a command refuses its words; None if it takes them."""
    try:
        parser.parse_args(["bench", *words])
    except SystemExit:
        error, hint = capsys.readouterr().err.strip().splitlines()
        assert hint.startswith("See `tokenmill")
        return error
    return None


@pytest.mark.parametrize("command", ["serve", "throughput", "latency", "startup"])
def test_each_own_option_is_read_or_refused_with_a_reason(
    parser: argparse.ArgumentParser, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in options(command):
        found = [refusal(parser, [command, option, *value], capsys) for value in VALUES]
        reasons = [line for line in found if line and line.startswith(f"error: {option}: ")]
        assert None in found or len(reasons) == len(found), found


def test_each_option_of_the_engine_is_read_or_refused_in_one_line(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in options("engine"):
        refused = f"error: unrecognized arguments: {option}"
        for value in VALUES:
            line = refusal(parser, ["latency", option, *value], capsys)
            if line is None or line.startswith(refused):
                break
        assert line is None or line.startswith(refused), line
