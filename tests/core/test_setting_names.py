"""Names of settings: other names, misspelled ones, and those of vLLM that are refused."""

from __future__ import annotations

import argparse

import pytest

from tokenmill.api.cli import make_parser
from tokenmill.api.commands.flags.engine import engine_config
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return make_parser()


def refused(parser: argparse.ArgumentParser, *words: str) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", *words])


@pytest.mark.parametrize("level", range(4))
def test_a_level_of_optimization_has_a_short_flag(
    parser: argparse.ArgumentParser, level: int
) -> None:
    for words in ([f"-O{level}"], ["-O", str(level)], [f"-O={level}"]):
        args = parser.parse_args(["serve", *words])
        assert engine_config(args).optimization_level == level


def test_lengths_of_a_benchmark_have_the_names_of_vllm(parser: argparse.ArgumentParser) -> None:
    words = ["--input-tokens", "128", "--output-tokens", "256"]
    args = parser.parse_args(["simulate", "compare", *words])
    assert (args.random_input_len, args.random_output_len) == (128, 256)


@pytest.mark.parametrize(
    ("text", "length"),
    [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("auto", None), ("-1", None)],
)
def test_a_length_may_have_the_short_form_of_vllm(
    parser: argparse.ArgumentParser, text: str, length: int | None
) -> None:
    config = engine_config(parser.parse_args(["serve", f"--max-model-len={text}"]))
    assert config.max_model_len == length


def test_a_setting_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens is given twice: spec_tokens"):
        EngineConfig.from_options(num_speculative_tokens=3, spec_tokens=3)


@pytest.mark.parametrize("name", ["skip_tokenizer_init", "compile", "num_steps", "lora"])
def test_a_name_that_is_not_near_gets_no_suggestion(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options(**{name: 1})
    assert str(caught.value) == f"unknown option {name!r}"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--no-use-v2-block-manager"], "there is only one block manager; remove it"),
        (["--num-scheduler-steps", "8"], ": use --async-scheduling"),
        (["--compilation-config.mode", "3"], """. Give JSON: --compilation-config '{"mode": """),
        (["--zzz", "--task", "embed"], "--zzz --task. --task: one server answers chats"),
        (
            ["-O", '{"level": 3}'],
            "is not a level from 0 to 3; JSON belongs to --compilation-config",
        ),
        (["--enable-chunked-prefill=False"], "a switch takes no value; --no- before its name"),
        (
            ["m", "--enable-chunked-prefill", "False"],
            "a switch takes no value; --no- before its name",
        ),
        (
            ["--enable-chunked-prefill", "False"],
            "unrecognized arguments: False: a switch takes no value; --no- before its name",
        ),
        (["--max-model-len", "8kk"], "'8kk' is not a number"),
        (["--max-model-len", "none"], "8K or 8k (8000); for the default, leave the flag out"),
        (["--seed", "None"], "'None' is not a whole number; for the default, leave the flag out"),
        (["--seed", "1.5"], "'1.5' is not a whole number\n"),
        (["-q", "awq"], ": use --quantization"),
        (["--attention-config.backend", "FLASH_ATTN"], ": use --attention-backend"),
        (["-cc.mode=3"], """. Give JSON: -cc '{"mode": """),
        (["--max-num-batch-tokens", "3"], ". Did you mean '--max-num-batched-tokens'?"),
    ],
    ids=str,
)
def test_a_flag_of_vllm_gets_its_own_hint(
    parser: argparse.ArgumentParser,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    hint: str,
) -> None:
    refused(parser, *words)
    assert hint in capsys.readouterr().err


def test_the_older_name_of_the_ngram_method_is_refused_with_the_newer_one() -> None:
    with pytest.raises(ConfigError, match="give --speculative-method ngram instead"):
        EngineConfig(speculative_model="[ngram]")
