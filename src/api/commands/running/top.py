"""`tokenmill top`: what a running server does, in a terminal."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from ....core.contract.activity import Activity, BlockState, StepActivity, count_blocks
from ....core.contract.client import Load
from ....core.errors import ConfigError
from ..printing import new_table, print_json, print_table
from .running_server import add_server_flags, ask

if TYPE_CHECKING:
    from rich.console import Group

MAX_REQUESTS = 30
MAX_STEPS = 60
BARS = " ▁▂▃▄▅▆▇█"


class _Answer(msgspec.Struct):
    version: str
    model: str
    is_redacted: bool
    load: Load
    engines: list[Activity]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "top",
        help="show what a running server does, once per second",
        description="Show running and waiting requests, the last steps and the KV blocks of a "
        "server. Without the admin key, ids are placeholders. Ctrl-C ends it. If the output is not "
        "a terminal, the state is shown once.",
        examples=("tokenmill top", "tokenmill top --url http://127.0.0.1:8080 --json"),
    )
    add_server_flags(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS",
        help="seconds between two updates (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON once")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if not 0.1 <= args.interval <= 3600:
        raise ConfigError(f"--interval must be between 0.1 and 3600, got {args.interval:g}")
    found = _ask(args)
    if args.json:
        print_json(found)
        return 0
    from rich.console import Console
    from rich.live import Live

    if not sys.stdout.isatty():
        print_table(_view(found), width=120)
        return 0
    console = Console(markup=False)
    with Live(_view(found), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(args.interval)
                live.update(_view(_ask(args)), refresh=True)
        except KeyboardInterrupt:
            return 0


def _ask(args: argparse.Namespace) -> _Answer:
    missing = "the server has no live page: it runs with --no-ui, or is not tokenmill"
    return ask(args, "/live/activity", _Answer, missing=missing)


def _view(found: _Answer) -> Group:
    from rich.console import Group
    from rich.text import Text

    load = found.load
    lines = [
        f"{found.model} · version {found.version}",
        f"{load.num_running} running, {load.num_waiting} waiting, "
        f"KV cache {load.kv_cache_usage:.1%}",
    ]
    for engine in found.engines:
        name = f"engine {engine.engine}: " if len(found.engines) > 1 else ""
        lines.append(f"{name}blocks: {_blocks(engine)}")
        lines += [f"{name}{line}" for line in _steps(engine.steps)]
    return Group(Text("\n".join(lines)), _requests(found))


def _blocks(engine: Activity) -> str:
    counts = count_blocks(engine.blocks)
    text = ", ".join(f"{counts[state]} {state.name.lower()}" for state in BlockState)
    if engine.host_blocks_total:
        text += f"; host memory {engine.host_blocks_used} of {engine.host_blocks_total}"
    return text


def _steps(steps: tuple[StepActivity, ...]) -> list[str]:
    if not steps:
        return ["no steps yet"]
    shown = steps[-MAX_STEPS:]
    tokens = [step.num_prompt_tokens + step.num_decode_tokens for step in shown]
    highest = max(*tokens, 1)
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in tokens)
    last = steps[-1]
    return [
        f"tokens per step, at most {highest}: {bars}",
        f"step {last.step_id}: {last.num_prompt_tokens} prompt tokens, {last.num_decode_tokens} "
        f"decoded, plan {1e3 * last.plan_seconds:.1f} ms, device {1e3 * last.device_seconds:.1f} "
        f"ms, commit {1e3 * last.commit_seconds:.1f} ms",
    ]


def _requests(found: _Answer) -> Any:
    from ...http.logs.log_lines import printable

    right = ("AGE", "PROMPT", "GENERATED", "BLOCKS", "PRIORITY")
    table = new_table("REQUEST", "STATUS", *right, "WAITS FOR", right=right)
    requests = [request for engine in found.engines for request in engine.requests]
    for one in requests[:MAX_REQUESTS]:
        counts = one.num_prompt_tokens, one.num_generated_tokens, one.num_blocks, one.priority
        table.add_row(
            printable(one.request_id),
            one.status,
            f"{one.age:.1f} s",
            *map(str, counts),
            one.waits_for or "",
        )
    if len(requests) > MAX_REQUESTS:
        table.add_row(f"and {len(requests) - MAX_REQUESTS} more")
    return table
