"""The parser of every command. It suggests known names for unknown ones, and prints help."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ....core.settings.refused import refusal
from ....core.wording.suggest import did_you_mean, near_and_known
from .config_file import namespace_of_file
from .groups import COMMON
from .help_text import full_help, help_about, names_of_groups, short_help

_NO_VALUE = "a switch takes no value; --no- before its name switches it off"
_INVALID = re.compile(r"invalid (int|float) value: (.*)")
_NUMBERS = {"int": "a whole number", "float": "a number"}
_NONE_GIVEN = re.compile("^argument .*: 'none' is not", re.IGNORECASE)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that refuses abbreviations, has examples, and suggests near names."""

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        """`examples`: command lines that the help shows."""
        super().__init__(**{"allow_abbrev": False, "add_help": False, **options})
        self.examples = tuple(examples)
        for names, nargs, text in (
            (("-h", "--help"), "?", "print help; with a word: flags of a group, or about the word"),
            (("--help-all",), 0, "print help with all flags"),
        ):
            self.add_argument(
                *names,
                action=HelpAction,
                nargs=nargs,
                dest="help",
                default=argparse.SUPPRESS,
                metavar="GROUP",
                help=text,
            )

    @property
    def has_commands(self) -> bool:
        """Whether a command, or a verb, must follow."""
        return self._subparsers is not None

    def commands(self) -> dict[str, CommandParser]:
        """The parsers of its commands by their names; empty if it has none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    def format_help(self) -> str:
        return short_help(self, self.examples)

    def format_full_help(self) -> str:
        return full_help(self, self.examples)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, or print one line and exit with status 2.

        Without a command, the help is printed on stderr: a script whose variable is empty must not
        go on as if a command had run.
        """
        found, unknown = self.parse_known_args(args, namespace)
        model = getattr(found, "model_argument", None) or ""
        if _is_boolean(model):  # it was meant for a switch; ./false is a model
            unknown.insert(0, model)
        chosen = self._chosen(found)
        if unknown:
            self._refuse(unknown, chosen)
        if chosen.has_commands:
            chosen.print_help(sys.stderr)
            chosen.exit(2)
        return found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse into the values of the file that --config names."""
        found, rest = super().parse_known_args(args, namespace_of_file(self, args, namespace))
        has_prompt = hasattr(found, "prompt") and found.model_argument is None
        if has_prompt and len(rest) == 1 and not rest[0].startswith("-"):
            # Flags stand between MODEL and PROMPT.
            found.model_argument, found.prompt = found.prompt, rest.pop()
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line, which names the command's help."""
        message = message.replace("ignored explicit argument", f"{_NO_VALUE}, got")
        message = _INVALID.sub(lambda found: f"{found[2]} is not {_NUMBERS[found[1]]}", message)
        if _NONE_GIVEN.search(message):
            message += "; for the default, leave the flag out"
        self.exit(2, f"error: {message}\nSee `{self.prog} --help`.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = did_you_mean(value, action.choices)
            known = f". The commands are {', '.join(action.choices)}."
            self.error(f"unknown command {value!r}{near or known}")
        super()._check_value(action, value)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """No abbreviations of short flags, which `allow_abbrev` permits: -p is not -pp."""
        found: list[Any] = super()._get_option_tuples(option_string)
        return [one for one in found if option_string.startswith(one[1])]

    def _chosen(self, found: argparse.Namespace) -> CommandParser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                name = getattr(found, action.dest)
                return self if name is None else action.choices[name]._chosen(found)
        return self

    def _refuse(self, unknown: Sequence[str], chosen: CommandParser) -> NoReturn:
        flags = [word.split("=")[0] for word in unknown if word.startswith("-")]
        hints = ((flag, self._hint(flag, chosen)) for flag in flags)
        about, hint = next(filter(lambda found: found[1], hints), ("", ""))
        subject = f". {about}" if hint and len(flags) > 1 else ""
        if not flags and _is_boolean(unknown[0]):
            hint = f": {_NO_VALUE}"
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}{subject}{hint}")

    def _hint(self, flag: str, chosen: CommandParser) -> str:
        return refusal(flag) or self._find(flag) or chosen._as_json(flag) or chosen._near(flag)

    def _find(self, flag: str) -> str:
        """A sentence that names the first command with this flag; empty if no command has it."""
        if flag in self._flags():
            return f". It is a flag of `{self.prog}`."
        found = (parser._find(flag) for parser in self.commands().values())
        return next(filter(None, found), "")

    def _as_json(self, flag: str) -> str:
        """A sentence about vLLM's form `--flag.key value`; empty if the flag has another form."""
        base, _, key = flag.partition(".")
        if not key or base not in self._flags():
            return ""
        example = json.dumps({key: "VALUE"})
        return f". Give JSON: {base} '{example}'"

    def _near(self, flag: str) -> str:
        """A question about a similar flag. A letter stands for a common flag that begins with it,
        not for another short flag."""
        if len(flag) > 2:
            return did_you_mean(flag, self._flags())
        common = (one for one in COMMON if one in self._flags() and one.startswith(f"-{flag}"))
        near = next(common, "")
        return f". Did you mean {near!r}?" if near else ""

    def _flags(self) -> Iterable[str]:
        return self._option_string_actions


class HelpAction(argparse.Action):
    """`--help`, `--help=WORD` and `--help-all`: prints and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, CommandParser)
        print(self._text(parser, option_string, values), end="", flush=True)
        parser.exit()

    def _text(self, parser: CommandParser, flag: str | None, word: object) -> str:
        if flag == "--help-all" or word == "all":
            return parser.format_full_help()
        if not isinstance(word, str):
            return parser.format_help()
        if word in parser.commands():  # `tokenmill --help serve`
            return parser.commands()[word].format_help()
        text = help_about(parser, word)
        if not text:
            known = names_of_groups(parser) or list(parser.commands())
            near = near_and_known(word, known) if known else ""
            parser.error(f"--help={word}: no group, flag or help text has this word{near}")
        return text


def _is_boolean(word: str) -> bool:
    return word.lower() in ("true", "false")
