"""The page for users of vLLM's tuning guides: it is up to date, and each of its lines is true."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import pytest

from tokenmill import AsyncEngine, ConfigError
from tokenmill.api.cli import make_parser
from tokenmill.api.commands.flags.engine import engine_config
from tokenmill.core.config import EngineConfig
from tokenmill.core.settings.declaration import flag
from tokenmill.core.settings.refused import REFUSED

from .pages import ROOT, run_script
from .test_generated import STALE

SCRIPT = run_script("write_tuning.py")


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return make_parser()


def test_the_page_is_up_to_date() -> None:
    page = ROOT / "docs/tuning.md"
    assert page.read_text(encoding="utf-8") == SCRIPT["page"](), STALE


@pytest.mark.parametrize(("name", "value"), SCRIPT["ACCEPTED"], ids=str)
def test_an_accepted_line_sets_the_same_as_flag_and_as_argument(
    parser: argparse.ArgumentParser, name: str, value: Any
) -> None:
    in_program = EngineConfig.from_options(**{name: value})
    if name == "data_parallel_size":
        with pytest.raises(ConfigError, match="use LLM"):
            AsyncEngine(**{name: value})
    else:
        assert AsyncEngine(**{name: value}).config == in_program
    args = parser.parse_args(["serve", *SCRIPT["command_line"](name, value)])
    on_command_line = engine_config(args)
    for setting in in_program.given:
        found = getattr(on_command_line, setting.name)
        is_json = isinstance(found, str) and not isinstance(value, str)
        assert (json.loads(found) if is_json else found) == value
    assert on_command_line.given == in_program.given


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_line_names_what_to_use_instead(
    parser: argparse.ArgumentParser, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options(**{name: 1})
    assert str(caught.value) == f"unknown option {name!r}: {REFUSED[name]}"
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", f"{flag(name)}=1"])
    message = capsys.readouterr().err
    assert REFUSED[name] in message
    assert "Did you mean" not in message


def test_the_flags_that_refusals_name_exist() -> None:
    known = {flag(setting.name) for setting in dataclasses.fields(EngineConfig)}
    known |= {"--no-async-scheduling"}
    words = " ".join(REFUSED.values()).replace("(", " ").replace(",", " ").replace(";", " ").split()
    assert {word for word in words if word.startswith("--")} <= known
