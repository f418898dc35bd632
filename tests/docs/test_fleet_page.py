"""The page about fleets: small versions of its commands run, and it names all flags of the load."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tokenmill.api.cli import main

from .pages import ROOT

PAGE = (ROOT / "docs/fleet.md").read_text(encoding="utf-8")
SMALLER = {
    "--duration": "6", "--replicas": "3", "--request-rate": "2", "--period": "6",
    "--max-replicas": "4", "--prefix-len": "64", "--start-seconds": "1", "--lose": "2=0-1",
}  # fmt: skip


def commands() -> list[list[str]]:
    """The commands that simulate a fleet, as lists of arguments without the program."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("tokenmill simulate fleet")]


@pytest.mark.parametrize("command", commands(), ids=lambda command: " ".join(command[2:5]))
def test_a_command_of_the_page_runs(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--step-time" in command:  # the bundled file will do
        at = command.index("--step-time")
        del command[at : at + 2]
    small = [
        SMALLER.get(before, word) for before, word in zip(["", *command], command, strict=False)
    ]
    assert main([*small, "--duration", "6", "--output-len", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["results"]) >= 2
    assert all(one["num_requests"] > 0 for one in document["results"])
    assert ("--html" in command) == (tmp_path / "fleet.html").exists()


def test_the_page_has_a_command_for_each_question() -> None:
    assert len(commands()) == 5
    for flag in ("--router", "--find-replicas", "--lose", "--autoscale"):
        assert any(flag in command for command in commands()), flag
