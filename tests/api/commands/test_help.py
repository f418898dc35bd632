"""Help: it fits the terminal, has examples that work, and no flag is lost."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from tokenmill.api.cli import make_parser
from tokenmill.api.commands.flags.groups import COMMON, GROUPS
from tokenmill.api.commands.flags.parser import CommandParser

PLACEHOLDERS = {
    "ADDRESS", "CPUS", "GROUP", "JSON", "KEY", "KEY=A,B,C", "KEY=VALUE", "LIST", "MODEL", "N",
    "NAME", "NAME:MS", "ORIGIN", "PATH", "SECONDS", "SIZE", "TEXT", "URL",
}  # fmt: skip
"""What may stand for a value, besides the choices."""


def all_parsers(parser: CommandParser) -> Iterator[CommandParser]:
    yield parser
    for inner in parser.commands().values():
        yield from all_parsers(inner)


PARSER = make_parser()
PARSERS = {parser.prog: parser for parser in all_parsers(PARSER)}
ENGINE = {name: one for name, one in PARSERS.items() if "--model" in one._option_string_actions}
"""Commands that take engine flags."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        PARSER.parse_args(words)
    assert end.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> set[str]:
    """The flags that have a line of their own in a help text. None has two."""
    found = re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)
    assert len(found) == len(set(found))
    return {f"--{name}" for name in found}


@pytest.mark.parametrize("name", PARSERS)
def test_help_fits_80_columns_and_has_an_example_that_the_parser_accepts(name: str) -> None:
    parser = PARSERS[name]
    for text in (parser.format_help(), parser.format_full_help()):
        assert max(map(len, text.splitlines())) <= 80
        assert parser.examples and all(f"\n  {one}\n" in text for one in parser.examples)
    for example in parser.examples:
        name_of_program, *words = shlex.split(re.split("[>|]", example)[0])
        assert name_of_program == "tokenmill"
        PARSER.parse_args(words)
    assert any(example.startswith(name) for example in parser.examples)


def test_help_of_serve_fits_on_two_screens() -> None:
    text = PARSERS["tokenmill serve"].format_help()
    assert len(text.splitlines()) <= 48
    assert flags_in(text) == set(COMMON) - {"--model"}  # its argument MODEL
    assert len(re.findall("^  tokenmill serve", text, re.MULTILINE)) == 3
    for group, about in GROUPS.items():
        assert re.search(rf"^  {group} +{re.escape(about)}$", text, re.MULTILINE)


@pytest.mark.parametrize("name", ENGINE)
def test_every_flag_is_in_exactly_one_group(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser, words = ENGINE[name], name.split()[1:]
    flags = sorted(
        next(one for one in action.option_strings if one.startswith("--"))
        for action in parser._actions
        if _is_shown(action)
    )
    titles = [group.title for group in parser._action_groups if _has_flags(group)]
    groups = ["flags" if title == "options" else f"{title}" for title in titles]
    shown = [
        flag for group in groups for flag in flags_in(printed(capsys, *words, f"--help={group}"))
    ]
    assert sorted(shown) == flags
    assert flags_in(printed(capsys, *words, "--help-all")) == set(flags)
    assert flags_in(printed(capsys, *words, "--help")) <= set(flags)


def _has_flags(group: argparse._ArgumentGroup) -> bool:
    return any(map(_is_shown, group._group_actions))


def _is_shown(action: argparse.Action) -> bool:
    is_flag = action.option_strings and action.dest != "help"
    return bool(is_flag) and action.help is not argparse.SUPPRESS


def test_the_groups_of_serve_are_the_known_ones() -> None:
    groups = PARSERS["tokenmill serve"]._action_groups
    assert {group.title for group in groups if _has_flags(group)} == set(GROUPS)


@pytest.mark.parametrize("name", PARSERS)
def test_a_value_has_a_placeholder_or_its_choices(name: str) -> None:
    for action in PARSERS[name]._actions:
        if action.option_strings and action.nargs != 0 and action.choices is None:
            metavar = action.metavar
            assert metavar in PLACEHOLDERS or str(metavar).startswith("{"), action.option_strings


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["serve", "--help=max-num-seqs"], {"--max-num-seqs"}),
        (["serve", "--help=--max_num_seqs"], {"--max-num-seqs"}),
        (["serve", "--help=opentelemetry"], {"--otlp-traces-endpoint"}),
        (["generate", "--help=sampling"], {
            "--max-tokens", "--temperature", "--top-p", "--top-k", "--top-n-sigma", "--min-p",
            "--repetition-penalty", "--seed", "--stop",
        }),
    ],
    ids=["a flag", "with underscores", "a word", "a group"],
)  # fmt: skip
def test_help_about_a_word(
    capsys: pytest.CaptureFixture[str], words: list[str], flags: set[str]
) -> None:
    assert flags_in(printed(capsys, *words)) == flags


def test_help_about_an_unknown_word_names_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        PARSER.parse_args(["serve", "--help=chache"])
    assert end.value.code == 2
    assert "Did you mean 'cache'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", PARSERS)
def test_help_is_a_command_too_and_takes_a_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = name.split()[1:]
    args = PARSER.parse_args(["help", *words])
    with pytest.raises(SystemExit):
        args.run(args)
    assert capsys.readouterr().out == PARSERS[name].format_help()
    if words:  # as in `tokenmill plugins --help check`
        other = printed(capsys, *words[:-1], "--help", words[-1])
        assert other == PARSERS[name].format_help()


@pytest.mark.parametrize("name", [name for name, one in PARSERS.items() if one.has_commands])
def test_a_missing_command_prints_help_with_status_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        PARSER.parse_args(name.split()[1:])
    assert end.value.code == 2
    assert capsys.readouterr() == ("", PARSERS[name].format_help())


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["sreve"], "unknown command 'sreve'. Did you mean 'serve'?"),
        (["plugins", "lst"], "unknown command 'lst'. Did you mean 'list'?"),
        (["help", "serv"], "unknown command 'serv'. Did you mean 'serve'?"),
        (["xyz"], "unknown command 'xyz'. The commands are serve, generate, "),
        (["serve", "-p", "80"], "unrecognized arguments: -p. Did you mean '--port'?"),
        (["generate", "-t", "a"], "unrecognized arguments: -t. Did you mean '--tensor-parallel"),
        (["serve", "-z"], "unrecognized arguments: -z\n"),
    ],
    ids=" ".join,
)
def test_a_misspelt_command_or_short_flag_gets_a_near_one(
    capsys: pytest.CaptureFixture[str], words: list[str], near: str
) -> None:
    with pytest.raises(SystemExit) as end:
        args: argparse.Namespace = PARSER.parse_args(words)
        args.run(args)
    assert end.value.code == 2
    assert near in capsys.readouterr().err
