"""The command line: `tokenmill serve | generate | chat | plugins | simulate | model | draft`.

Importing this file does not import torch, so `--help` is fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ..core.errors import TokenmillError
from ..core.log import EventFormatter
from ..core.settings.refused import refusal
from ..core.suggest import did_you_mean
from ..version import __version__
from .commands import chat, draft, generate, model, plugins, serve
from .commands.simulate import command as simulate

COMMANDS = (serve, generate, chat, plugins, simulate, model, draft)

_NO_VALUE = "a switch takes no value; --no- before its name switches it off"


class _Parser(argparse.ArgumentParser):
    """An argument parser that refuses abbreviations and suggests known flags for unknown ones."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        model = getattr(found, "model_argument", None) or ""
        if _is_boolean(model):  # it was meant for a switch; ./false is a model
            unknown.insert(0, model)
        if unknown:
            self._refuse(unknown, self._chosen(found))
        return found

    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", f"{_NO_VALUE}, got")
        self.exit(2, f"error: {message}\nSee `{self.prog} --help`.\n")

    def _chosen(self, found: argparse.Namespace) -> _Parser:
        """The parser of the command, or of its verb, that was given."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                inner: _Parser = action.choices[getattr(found, action.dest)]
                return inner._chosen(found)
        return self

    def _refuse(self, unknown: Sequence[str], chosen: _Parser) -> NoReturn:
        flags = [word.split("=")[0] for word in unknown if word.startswith("-")]
        hints = ((flag, self._hint(flag, chosen)) for flag in flags)
        about, hint = next(filter(lambda found: found[1], hints), ("", ""))
        subject = f". {about}" if hint and len(flags) > 1 else ""
        if not flags and _is_boolean(unknown[0]):
            hint = f": {_NO_VALUE}"
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}{subject}{hint}")

    def _hint(self, flag: str, chosen: _Parser) -> str:
        return (
            refusal(flag)
            or self._find(flag)
            or chosen._as_json(flag)
            or did_you_mean(flag, chosen._flags())
        )

    def _find(self, flag: str) -> str:
        """A sentence that names the first command with this flag; empty if no command has it."""
        if flag in self._flags():
            return f". It is a flag of `{self.prog}`."
        inner = [a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        found = (parser._find(flag) for parsers in inner for parser in parsers.values())
        return next(filter(None, found), "")

    def _as_json(self, flag: str) -> str:
        """A sentence about vLLM's form `--flag.key value`; empty if the flag has another form."""
        base, _, key = flag.partition(".")
        if not key or base not in self._flags():
            return ""
        example = json.dumps({key: "VALUE"})
        return f". Give JSON: {base} '{example}'"

    def _flags(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


def _is_boolean(word: str) -> bool:
    return word.lower() in ("true", "false")


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="tokenmill",
        description="An LLM inference engine in Python. Plugins can replace every policy.",
    )
    parser.add_argument("--version", action="version", version=f"tokenmill {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for command in COMMANDS:
        command.add_parser(subparsers)
    version = subparsers.add_parser("version", help="print the version")
    version.set_defaults(run=_print_version)
    return parser


def _print_version(args: argparse.Namespace) -> int:
    print(f"tokenmill {__version__}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    A user's mistake prints one line on stderr and returns 1; wrong flags exit with status 2.
    """
    _open_standard_streams()
    args = make_parser().parse_args(argv)
    try:
        with _warnings_shown():
            status: int = args.run(args)
        sys.stdout.flush()
        return status
    except TokenmillError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _leave_at_once()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader has closed the pipe
        return 1


def _open_standard_streams() -> None:
    """Open the null device for closed standard streams, so that writes do not fail, and no socket
    gets their numbers, to which native code may write."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """Print warnings on stderr with their fields; logging alone would print event names only."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(EventFormatter("warning: %(message)s"))
    logger = logging.getLogger("tokenmill")
    if logger.handlers:  # a program that embeds the command line has set up its own logging
        yield
        return
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _leave_at_once() -> NoReturn:
    """Exit at once. A normal exit would wait for a thread that may still load a model."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
