"""The command line, `tokenmill COMMAND`. COMMANDS lists them.

Importing this file does not import torch, so `--help` is fast.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from typing import NoReturn

from ..core.errors import ConfigError, TokenmillError
from ..core.log import EventFormatter
from ..version import __version__
from .commands import completion, doctor, draft, generate, serve
from .commands.bench import command as bench
from .commands.chat import command as chat
from .commands.flags.parser import CommandParser
from .commands.model import command as model
from .commands.plugins import command as plugins
from .commands.running import top, trace, why
from .commands.simulate import command as simulate
from .commands.tune import command as tune
from .http.logs.log_output import log_handler

COMMANDS = (
    *(serve, generate, chat, plugins, simulate, bench, tune, model, draft, doctor),
    *(top, why, trace),
)


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="tokenmill",
        description="An LLM inference engine in Python. Plugins can replace every policy.",
        epilog="`tokenmill help COMMAND` describes a command.",
        examples=("tokenmill serve", "tokenmill help serve"),
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"tokenmill {__version__}",
        help="print the version",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    completion.add_parser(subparsers, make_parser)
    about = subparsers.add_parser(
        "help",
        help="describe a command",
        description="Describe a command, as --help does.",
        examples=("tokenmill help plugins check",),
    )
    about.add_argument("words", metavar="COMMAND", nargs="*", help="the command and its verb")
    about.set_defaults(run=lambda args: parser.parse_args([*args.words, "--help"]))
    version = subparsers.add_parser(
        "version", help="print the version", examples=("tokenmill version",)
    )
    version.set_defaults(run=_print_version)
    return parser


_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)
"""Errors of the standard output, which is a pipe or a file on a disk."""


def _print_version(args: argparse.Namespace) -> int:
    print(f"tokenmill {__version__}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    A user's mistake prints one line on stderr and returns 1; wrong flags exit with status 2.
    """
    _open_standard_streams()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # as a parent left it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # so that it is known how children end
    try:
        args = make_parser().parse_args(argv)
        _check_folder()
        with _warnings_shown():
            status: int = args.run(args)
        sys.stdout.flush()
        return status
    except TokenmillError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _leave_at_once()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        if error.errno != errno.EPIPE:  # otherwise the reader has closed the pipe, and knows it
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in buffers
        return 1


def _check_folder() -> None:
    """Raise ConfigError if the current folder is gone: native libraries would end the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder was removed: change to another one") from None


def _open_standard_streams() -> None:
    """Open the null device for closed standard streams, so that writes do not fail, and no socket
    gets their numbers, to which native code may write. Escape what an encoding such as ASCII lacks.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)
        elif mode == "w" and isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """Print warnings on stderr with their fields; logging alone would print event names only."""
    handler = log_handler()
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
