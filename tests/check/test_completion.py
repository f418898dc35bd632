"""The scripts of `tokenmill completion` load in each shell, and complete what a user has typed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from .parts import need

VALUES = ["q8_0", "q4_0", "q4_k"]


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The script of a shell, under the name that zsh expects."""
    command = [sys.executable, "-m", "tokenmill", "completion", request.param]
    path = tmp_path / "_tokenmill"
    path.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return path


def run(*command: str | Path) -> list[str]:
    """The first words of the lines that a shell prints. It must print no error."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split()[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_flags_and_values(script: Path) -> None:
    code = """
        source "$0"
        [[ $(complete -p tokenmill) =~ -F\\ ([a-z_]+) ]]
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        ${BASH_REMATCH[1]} tokenmill "${@: -1}" "${@: -2:1}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """

    def complete(*words: str) -> list[str]:
        return run(need("bash", "bash"), "--norc", "-c", code, script, *words)

    assert complete("tokenmill", "pl") == ["plugins"]
    assert complete("tokenmill", "serve", "--max-num-s") == ["--max-num-seqs"]
    assert complete("tokenmill", "serve", "--quantize-on-load", "") == VALUES


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_commands_flags_and_values(script: Path) -> None:
    def complete(line: str) -> list[str]:
        code = f"source {script}; complete -C '{line}'"
        return run(need("fish", "fish"), "--no-config", "-c", code)

    assert complete("tokenmill pl") == ["plugins"]
    assert complete("tokenmill serve --max-num-s") == ["--max-num-seqs"]
    assert complete("tokenmill serve --quantize-on-load ") == VALUES


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tokenmill pl", "tokenmill plugins"),
        ("tokenmill serve --max-num-s", "tokenmill serve --max-num-seqs"),
        ("tokenmill serve --quantize-on-load q8", "tokenmill serve --quantize-on-load q8_0"),
    ],
)
@pytest.mark.parametrize("load", ["fpath=({folder} $fpath); {init}", "{init}; source {script}"])
def test_zsh_completes_commands_flags_and_values(
    script: Path, load: str, typed: str, completed: str
) -> None:
    zsh = need("zsh", "zsh")
    init = "autoload -U compinit; compinit -D"
    setup = f"PROMPT=%%; {load.format(folder=script.parent, script=script, init=init)}"
    with Terminal(zsh, "-f", "-i") as terminal:
        terminal.write(f"unsetopt zle_bracketed_paste; {setup}; echo set''up\n")
        terminal.wait_for("setup")
        terminal.write(f"{typed}\t")
        terminal.wait_for(completed)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._child, self._file = pty.fork()
        if self._child == 0:
            os.environ["TERM"] = "dumb"
            os.execv(command[0], command)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)  # the command gets SIGHUP
        os.waitpid(self._child, 0)

    def write(self, text: str) -> None:
        os.write(self._file, text.encode())

    def wait_for(self, text: str) -> None:
        shown = ""
        while text not in shown:
            ready, _, _ = select.select([self._file], [], [], 60)
            assert ready, shown
            shown += os.read(self._file, 4096).decode(errors="replace")
