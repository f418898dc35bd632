"""Formats help: all flags of a command, its most common flags, or the flags about one word."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence

from .groups import COMMON, GROUPS

SCREENS = 48
"""Lines of two screens. A command whose help is longer shows its common flags only."""
MAX_COLUMNS = 100
_DEFAULT = re.compile(r" \(default: \S+\)$")
"""The end of a help text, if it is short enough for the short help."""


class HelpFormatter(argparse.HelpFormatter):
    """Shows a flag as `--name, -n VALUE`, in every version of Python."""

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size().columns, MAX_COLUMNS)
        super().__init__(prog, max_help_position=30, width=columns - 1)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)  # a flag stays whole

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = self._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
        return f"{', '.join(action.option_strings)} {value}".rstrip()


def short_help(parser: ArgumentParser, examples: Sequence[str]) -> str:
    """The whole help if it fits on two screens, else the common flags and the names of groups."""
    text = full_help(parser, examples)
    folded = _folded(parser)
    if not folded or len(text.splitlines()) <= SCREENS:
        return text
    formatter = _begin(parser)
    own = [group for group in _own_groups(parser) if _flags(group)]
    if own:
        _add_section(formatter, "arguments", _positionals(parser))
        for group in own:
            _add_section(formatter, _title(group), _flags(group), group.description)
        _add_section(formatter, "common flags", _common(parser))
    else:  # two lines less
        _add_section(formatter, "common flags", [*_positionals(parser), *_common(parser)])
    rows = "".join(f"  {group.title:<15}{group.description}\n" for group in folded)
    more = "\nmore flags, with --help=GROUP, --help=WORD or --help-all:\n"
    return formatter.format_help() + more + rows + _examples(examples)


def full_help(parser: ArgumentParser, examples: Sequence[str]) -> str:
    """All commands and flags of a parser, group by group."""
    formatter = _begin(parser)
    _add_section(formatter, "arguments", _positionals(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            _add_section(formatter, "commands", action._get_subactions())
    for group in (*_own_groups(parser), *_folded(parser)):
        _add_section(formatter, _title(group), _flags(group), group.description)
    formatter.add_text(parser.epilog)
    return formatter.format_help() + _examples(examples)


def help_about(parser: ArgumentParser, word: str) -> str:
    """The flags of a group, one flag, or the flags whose name or help contains a word.

    Empty if there are none.
    """
    for group in (*_own_groups(parser), *_folded(parser)):
        if _title(group) == word:
            return _section(word, _flags(group), group.description)
    flags = [flag for group in parser._action_groups for flag in _flags(group)]
    name = "--" + word.lower().lstrip("-").replace("_", "-")
    found = [flag for flag in flags if name in flag.option_strings] or [
        flag
        for flag in flags
        if word.lower() in f"{' '.join(flag.option_strings)} {flag.help}".lower()
    ]
    return _section(f"flags about {word}", found) if found else ""


def names_of_groups(parser: ArgumentParser) -> list[str]:
    """The words that `--help=GROUP` knows."""
    return [_title(group) for group in _folded(parser)]


def _begin(parser: ArgumentParser) -> argparse.HelpFormatter:
    """A formatter that has the usage and the description."""
    formatter = HelpFormatter(parser.prog)
    words = [formatter._format_args(action, action.dest) for action in _positionals(parser)]
    if parser._subparsers is not None:
        words.append("COMMAND ...")
    elif any(_flags(group) for group in parser._action_groups):
        words.append("[FLAGS]")
    formatter.add_usage(" ".join(["%(prog)s", *words]), (), (), "usage: ")
    formatter.add_text(parser.description)
    return formatter


def _own_groups(parser: ArgumentParser) -> list[argparse._ArgumentGroup]:
    """The groups that only this command has. The short help shows their flags."""
    return [group for group in parser._action_groups if group.title not in GROUPS]


def _folded(parser: ArgumentParser) -> list[argparse._ArgumentGroup]:
    """The groups that the short help only names."""
    found = {group.title: group for group in parser._action_groups}
    return [found[name] for name in GROUPS if name in found]


def _positionals(parser: ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)
    ]


def _flags(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """The flags of a group, without those of help itself."""
    return [a for a in group._group_actions if a.option_strings and a.dest != "help"]


def _title(group: argparse._ArgumentGroup) -> str:
    return "flags" if group.title == "options" else group.title or ""


def _common(parser: ArgumentParser) -> Iterator[argparse.Action]:
    """The folded flags that are in COMMON, each under this name with its short text.

    An argument MODEL stands for --model.
    """
    known = {
        name: a for group in _folded(parser) for a in _flags(group) for name in a.option_strings
    }
    if any(action.metavar == "MODEL" for action in _positionals(parser)):
        known.pop("--model", None)
    for name, text in COMMON.items():
        found = known.get(name)
        if found is None:
            continue
        default = _DEFAULT.search(found.help or "") if found.nargs != 0 else None
        yield argparse.Action(
            [name],
            found.dest,
            nargs=None if found.nargs == "+" else found.nargs,
            default=found.default,
            choices=found.choices,
            help=text + (default.group() if default else ""),
            metavar=found.metavar,
        )


def _section(title: str, flags: Sequence[argparse.Action], text: str | None = None) -> str:
    formatter = HelpFormatter("")
    _add_section(formatter, title, flags, text)
    return formatter.format_help()


def _add_section(
    formatter: argparse.HelpFormatter,
    title: str,
    actions: Iterable[argparse.Action],
    text: str | None = None,
) -> None:
    formatter.start_section(title)
    formatter.add_text(text)
    formatter.add_arguments(actions)
    formatter.end_section()


def _examples(examples: Sequence[str]) -> str:
    if not examples:
        return ""
    return "\nexamples:\n" + "".join(f"  {example}\n" for example in examples)
