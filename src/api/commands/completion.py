"""`tokenmill completion`: scripts with which a shell completes commands, flags and values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ...core.errors import ConfigError
from .flags.parser import CommandParser, HelpAction


def add_parser(subparsers: Any, make_parser: Callable[[], CommandParser]) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands and flags in a shell",
        description="Print a script that completes commands and flags. bash reads "
        "~/.local/share/bash-completion/completions/tokenmill, zsh a file _tokenmill in a folder "
        "of fpath, fish ~/.config/fish/completions/tokenmill.fish. Needs the package shtab.",
        examples=(
            "tokenmill completion bash >> ~/.bashrc",
            "tokenmill completion zsh > ~/.zfunc/_tokenmill",
            "tokenmill completion fish > ~/.config/fish/completions/tokenmill.fish",
        ),
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"),
                        help="bash, zsh or fish")  # fmt: skip
    parser.set_defaults(run=lambda args: _run(make_parser(), args.shell))


def _run(parser: CommandParser, shell: str) -> int:
    """Print the script. Raises ConfigError without shtab."""
    if find_spec("shtab") is None:
        raise ConfigError("`tokenmill completion` uses shtab: install it with `pip install shtab`")
    import shtab

    _prepare(parser, shtab.FILE)
    script = shtab.complete(parser, shell)
    # shtab knows only `eval "$(...)"`; with `source <(...)`, zsh would print an error.
    print(script.replace("[[ $zsh_eval_context[-1] == eval ]]",
                         "[[ $zsh_eval_context[-1] == (eval|file) ]]"))  # fmt: skip
    return 0


def _prepare(parser: CommandParser, files: object) -> None:
    """Change a parser for shtab: values, which metavars name, and only what all shells can read.

    `files`: shtab's word for names of files.
    """
    for action in parser._actions:
        # fish has no short flags of two letters; shtab would write a line that it refuses.
        action.option_strings = [
            name for name in action.option_strings if name.startswith("--") or len(name) == 2
        ]
        action.help = re.split("[;:(]", action.help or "")[0].strip()  # one line of a menu
        if isinstance(action, HelpAction):
            action.nargs = 0
        metavar = str(action.metavar)
        if metavar.startswith("{"):
            action.choices = metavar.strip("{}").split(",")
        elif metavar in ("PATH", "MODEL"):
            action.complete = files  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                action.choices[choice.dest].description = choice.help
    for inner in parser.commands().values():
        _prepare(inner, files)
