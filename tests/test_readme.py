"""What the README shows is true."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tokenmill.api.cli import make_parser
from tokenmill.core.host.plugins_file import read_plugins_file

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The README's code in one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_it_shows_the_two_commands_first() -> None:
    lines = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert lines == ["make serve", "make test"]


PROGRAMS = [block for block in blocks("python") if "hookimpl" not in block]
"""Each loads the default model: one in `make test`, the others in `make check`."""


@pytest.mark.parametrize(
    "source",
    [PROGRAMS[0], *(pytest.param(one, marks=pytest.mark.check) for one in PROGRAMS[1:])],
)
def test_its_programs_run(source: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_its_flags_exist() -> None:
    commands = next(
        action.choices
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    known = {name for action in commands["serve"]._actions for name in action.option_strings}
    shown = set(re.findall(r"`(--[a-z-]+)`", README))
    assert "--max-num-seqs" in shown
    assert shown <= known


def test_its_plugins_toml_is_accepted(tmp_path: Path) -> None:
    [settings] = [b for b in blocks("toml") if "[scheduler]" in b]
    path = tmp_path / "plugins.toml"
    path.write_text(settings)
    slots = read_plugins_file(path).slots
    assert {slots[table].use for table in tomllib.loads(settings)} == {
        "prefill-first",
        "shortest-first",
        "swap",
    }


def test_it_gives_the_size_of_the_engine_room() -> None:
    [claimed] = re.findall(r"`src/core/engine`\s+plans every step in about ([\d,]+) lines", README)
    files = (Path(__file__).parent.parent / "src/core/engine").glob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert abs(lines - int(claimed.replace(",", ""))) < 0.1 * lines
