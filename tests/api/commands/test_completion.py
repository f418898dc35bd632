"""`tokenmill completion` without a shell. tests/check/test_completion.py runs the shells."""

from __future__ import annotations

import pytest

from tokenmill.api.cli import main
from tokenmill.api.commands import completion


def test_a_script_has_no_short_flag_of_two_letters_which_fish_refuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    assert "-l tensor-parallel-size" in script and "-s q -l quick" in script
    assert "-s tp" not in script


def test_without_its_package_the_command_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == (
        "error: `tokenmill completion` uses shtab: install it with `pip install shtab`\n"
    )
