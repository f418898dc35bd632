"""`tokenmill bench sweep`: measures a server, or starts of an engine, with several sets of
options."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.errors import ConfigError
from ..flags.groups import add_numbers
from ..flags.keys import ADMIN_VARIABLE
from ..flags.parser import CommandParser
from .startup import add_startup_parser

if TYPE_CHECKING:
    from ....bench.sweeping.parameters import Parameters
    from ....bench.sweeping.sweep import Method, Sweep

_SERVE = "tokenmill bench sweep serve --serve-cmd ./serve.sh --bench-cmd ./bench.sh"
_STARTUP = """tokenmill bench sweep startup --serve-params '[{"dtype": "bfloat16"}]'"""
_SETS = "JSON, or a file with it: a list of objects with options, or an object of such objects"


def add_sweep_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "sweep",
        help="measure with several sets of options",
        description="Measure a server, or starts of an engine, with several sets of options.",
        examples=(_SERVE, _STARTUP),
    )
    kinds = parser.add_subparsers(dest="kind", metavar="VERB")
    serve = kinds.add_parser(
        "serve",
        help="start a server for each set of options, and measure it under each load",
        description="Start a server for each set of --serve-params, and measure it under each load "
        "of --bench-params. Options and files are those of `vllm bench sweep serve`.",
        examples=(_SERVE,),
    )
    _add_serve_flags(serve)
    _add_flags(serve, num_runs=3)
    serve.set_defaults(run=_run_serve)
    startup = kinds.add_parser(
        "startup",
        help="measure starts of an engine with each set of options",
        description="Run `tokenmill bench startup` with each set of options. Options and files are "
        "those of `vllm bench sweep startup`.",
        examples=(_STARTUP,),
    )
    _add_startup_flags(startup)
    _add_flags(startup, num_runs=1)
    startup.set_defaults(run=_run_startup)


def _add_serve_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--serve-cmd", required=True, metavar="TEXT", help="command that runs the server"
    )
    parser.add_argument(
        "--bench-cmd", required=True, metavar="TEXT", help="command that measures it"
    )
    parser.add_argument(
        "--after-bench-cmd",
        default="",
        metavar="TEXT",
        help="command after each run; default: empty the server's prefix cache, or start it again",
    )
    parser.add_argument(
        "--serve-params", metavar="JSON", help=f"sets of the server's flags: {_SETS}"
    )
    parser.add_argument("--bench-params", metavar="JSON", help=f"loads, in the same form: {_SETS}")
    parser.add_argument(
        "--link-vars",
        default="",
        metavar="LIST",
        help="use only combinations with equal values: SERVER=BENCH,...",
    )
    warmups = "requests of a run before the measured ones; 0: no such run"
    add_numbers(parser, ("--warmup-num-prompts", 0, warmups))
    parser.add_argument(
        "--server-ready-timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="time that the server has for its start",
    )
    parser.add_argument(
        "--continue-on-error", action="store_true", help="note a failed run, and measure the others"
    )


def _add_startup_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--startup-cmd",
        default="tokenmill bench startup",
        metavar="TEXT",
        help="command that measures the starts (default: %(default)s)",
    )
    parser.add_argument("--serve-params", metavar="JSON", help=f"sets of the engine: {_SETS}")
    parser.add_argument(
        "--startup-params",
        metavar="JSON",
        help=f"sets of the measurement, in the same form: {_SETS}",
    )
    parser.add_argument(
        "--strict-params",
        action="store_true",
        help="refuse options that `bench startup` does not have, for example those of the server; "
        "default: leave them out",
    )


def _add_flags(parser: argparse.ArgumentParser, *, num_runs: int) -> None:
    runs = "runs of each combination (default: %(default)s)"
    add_numbers(parser, ("--num-runs", num_runs, runs))
    parser.add_argument(
        *("-o", "--output-dir"), type=Path, default=Path("results"), metavar="PATH", help="folder"
    )
    parser.add_argument(
        *("-e", "--experiment-name"),
        metavar="NAME",
        help="subfolder of the results; default: the time",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the results that are there, and measure the rest",
    )
    parser.add_argument("--show-stdout", action="store_true", help="show what the commands print")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")


def _run_serve(args: argparse.Namespace) -> int:
    from ....bench.sweeping.parameters import read_links, read_parameters
    from ....bench.sweeping.served_runs import ServedRuns

    folder = _folder(args)
    admin_key = os.environ.get(ADMIN_VARIABLE) or secrets.token_urlsafe()
    method = ServedRuns(
        serve=_words(args.serve_cmd, "--serve-cmd"),
        bench=_words(args.bench_cmd, "--bench-cmd"),
        after=shlex.split(args.after_bench_cmd),
        log=None if args.show_stdout else folder / "server.log",
        ready_timeout=args.server_ready_timeout,
        environment={**os.environ, ADMIN_VARIABLE: admin_key},
        admin_key=admin_key,
    )
    return _run(
        args,
        folder,
        method,
        servers=read_parameters(args.serve_params, "--serve-params"),
        loads=read_parameters(args.bench_params, "--bench-params"),
        links=read_links(args.link_vars),
        num_warmups=args.warmup_num_prompts,
        continues=args.continue_on_error,
    )


def _run_startup(args: argparse.Namespace) -> int:
    from ....bench.sweeping.starts import Starts

    method = Starts(
        startup=_words(args.startup_cmd, "--startup-cmd"), shows_output=args.show_stdout
    )
    return _run(
        args,
        _folder(args),
        method,
        servers=_supported(args, args.serve_params, "--serve-params"),
        loads=_supported(args, args.startup_params, "--startup-params"),
    )


def _supported(args: argparse.Namespace, given: str | None, option: str) -> Sequence[Parameters]:
    """The sets with the options that `bench startup` has."""
    from ....bench.sweeping.parameters import read_parameters

    parser = CommandParser()
    add_startup_parser(parser.add_subparsers())
    known = {name.lstrip("-") for name in parser.commands()["startup"]._option_string_actions}
    found: dict[str, Parameters] = {}
    for one in read_parameters(given, option):
        kept = one.only(known)
        if missing := ", ".join(one.fields.keys() - kept.fields.keys()):
            text = f"{option}: `bench startup` has no option {missing}"
            if args.strict_params:
                raise ConfigError(text)
            print(f"note: {text}", file=sys.stderr)
        found[kept.name] = kept
    return list(found.values())


def _folder(args: argparse.Namespace) -> Path:
    if args.num_runs < 1:
        raise ConfigError("--num-runs must be at least 1")
    name = args.experiment_name or f"{datetime.now():%Y%m%d_%H%M%S}"
    folder: Path = args.output_dir / name
    if args.resume != folder.exists():
        missing = "does not exist: remove --resume" if args.resume else "exists: add --resume"
        raise ConfigError(f"{folder} {missing}, or choose another --experiment-name")
    return folder


def _run(args: argparse.Namespace, folder: Path, method: Method, **options: Any) -> int:
    from ....bench.sweeping.sweep import Sweep

    sweep = Sweep(folder=folder, method=method, num_runs=args.num_runs, **options)
    if args.dry_run:
        _print_commands(sweep)
        return 0
    failed = sweep.run(lambda line: print(line, flush=True))
    print(f"saved to {sweep.folder}")
    return 1 if failed else 0


def _print_commands(sweep: Sweep) -> None:
    for one in sweep.plan():
        first, *others = map(shlex.join, sweep.method.commands(one))
        print("\n  ".join([first, *others]))


def _words(command: str, option: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{option} cannot be divided into words: {error}") from error
    if not words:
        raise ConfigError(f"{option} is empty")
    return words
