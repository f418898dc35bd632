"""`tokenmill bench sweep serve`: measures a server with several sets of options."""

from __future__ import annotations

import argparse
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError

_EXAMPLE = "tokenmill bench sweep serve --serve-cmd ./serve.sh --bench-cmd ./bench.sh"
_SETS = "JSON, or a file with it: a list of objects with options, or an object of such objects"


def add_sweep_parser(verbs: Any) -> None:
    """Register the verb and its only kind."""
    parser = verbs.add_parser(
        "sweep",
        help="measure a server with several sets of options",
        description="Measure a server with several sets of options.",
        examples=(_EXAMPLE,),
    )
    kinds = parser.add_subparsers(dest="kind", metavar="VERB")
    serve = kinds.add_parser(
        "serve",
        help="start a server for each set of options, and measure it under each load",
        description="Start a server for each set of --serve-params, and measure it under each load "
        "of --bench-params. Options and files are those of `vllm bench sweep serve`.",
        examples=(_EXAMPLE,),
    )
    _add_flags(serve)
    serve.set_defaults(run=_run)


def _add_flags(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--num-runs", type=int, default=3, metavar="N", help="runs of each load")
    parser.add_argument(
        "--warmup-num-prompts",
        type=int,
        default=0,
        metavar="N",
        help="requests of a run before the measured ones; 0: no such run",
    )
    parser.add_argument(
        "--server-ready-timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="time that the server has for its start",
    )
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
    parser.add_argument(
        "--continue-on-error", action="store_true", help="note a failed run, and measure the others"
    )
    parser.add_argument("--show-stdout", action="store_true", help="show what the commands print")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")


def _run(args: argparse.Namespace) -> int:
    from ....bench.sweeping.parameters import read_links, read_parameters
    from ....bench.sweeping.sweep import Sweep

    if args.num_runs < 1:
        raise ConfigError("--num-runs must be at least 1")
    sweep = Sweep(
        folder=args.output_dir / (args.experiment_name or f"{datetime.now():%Y%m%d_%H%M%S}"),
        serve=_words(args.serve_cmd, "--serve-cmd"),
        bench=_words(args.bench_cmd, "--bench-cmd"),
        after=shlex.split(args.after_bench_cmd),
        servers=read_parameters(args.serve_params, "--serve-params"),
        loads=read_parameters(args.bench_params, "--bench-params"),
        links=read_links(args.link_vars),
        num_runs=args.num_runs,
        num_warmups=args.warmup_num_prompts,
        continues=args.continue_on_error,
        shows_output=args.show_stdout,
        ready_timeout=args.server_ready_timeout,
    )
    if args.resume != sweep.folder.exists():
        missing = "does not exist: remove --resume" if args.resume else "exists: add --resume"
        raise ConfigError(f"{sweep.folder} {missing}, or choose another --experiment-name")
    if args.dry_run:
        for one in sweep.plan():
            print(shlex.join(one.server.apply(sweep.serve)))
            print(f"  {shlex.join(one.command(sweep.bench))}")
        return 0
    failed = sweep.run(lambda line: print(line, flush=True))
    print(f"saved to {sweep.folder}")
    return 1 if failed else 0


def _words(command: str, option: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{option} cannot be divided into words: {error}") from error
    if not words:
        raise ConfigError(f"{option} is empty")
    return words
