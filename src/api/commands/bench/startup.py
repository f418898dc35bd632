"""`tokenmill bench startup`: how long an engine takes to start."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.errors import ConfigError
from ..flags.config_file import add_config_flag
from ..flags.engine import (
    SERVING,
    add_engine_flags,
    add_model_argument,
    engine_config,
    merge_model_argument,
)
from ..flags.groups import add_numbers
from ..progress import ProgressDisplay
from .saving import add_html_flag, save_json, save_text

if TYPE_CHECKING:
    from ....bench.one_start import Start
    from ....core.config import EngineConfig

_TITLES = {"startup": "Startup time", "compilation": "Compilation time"}


def add_startup_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "startup",
        help="seconds that an engine takes to start",
        description="Start an engine again and again, each time in a fresh process: first with "
        "empty caches (cold), then with full ones (warm).",
        examples=("tokenmill bench startup --num-iters-cold 1 --num-iters-warm 5",),
    )
    add_model_argument(parser)
    add_numbers(
        parser,
        ("--num-iters-cold", 3, "measured starts with empty caches"),
        ("--num-iters-warmup", 1, "starts that fill the caches before the warm ones"),
        ("--num-iters-warm", 3, "measured starts with full caches"),
    )
    parser.add_argument("--output-json", type=Path, metavar="PATH", help="write figures to a file")
    add_html_flag(parser)
    add_engine_flags(parser, leave_out=("served_model_name", "chat_template", *SERVING))
    add_config_flag(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    merge_model_argument(args)
    for name in ("cold", "warmup", "warm"):
        if getattr(args, f"num_iters_{name}") < 0:
            raise ConfigError(f"--num-iters-{name} must be at least 0")
    if not args.num_iters_cold + args.num_iters_warm:
        raise ConfigError("--num-iters-cold and --num-iters-warm are both 0")
    config = engine_config(args)
    from ....bench.starts import cold_start, start_fields, warm_start

    fields: dict[str, Any] = {}
    with ProgressDisplay() as progress:
        cold = _repeat(cold_start, config, args.num_iters_cold, "cold starts", progress)
        _repeat(warm_start, config, args.num_iters_warmup, "starts that fill the caches", progress)
        warm = _repeat(warm_start, config, args.num_iters_warm, "warm starts", progress)
    for kind, starts in (("cold", cold), ("warm", warm)):
        if starts:
            fields |= (own := start_fields(kind, starts))
            print("\n".join(_lines(kind, own)))
    if args.output_json is not None:
        save_json(args.output_json, fields)
    if args.html is not None:
        from ....bench.reports.page import fields_page

        save_text(args.html, fields_page("bench startup", fields))
    return 0


def _repeat(
    start: Callable[[EngineConfig], Start],
    config: EngineConfig,
    count: int,
    title: str,
    progress: ProgressDisplay,
) -> list[Start]:
    found = []
    for index in range(count):
        progress(title, index / count)
        found.append(start(config))
        progress(title, (index + 1) / count)
    return found


def _lines(kind: str, fields: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n{kind.upper()} STARTUP:"
    for name, title in _TITLES.items():
        yield f"Avg {title.lower()}: {fields[f'avg_{kind}_{name}_time']:.2f} seconds"
    for name, title in _TITLES.items():
        yield f"{title} percentiles:"
        for percentile, value in fields[f"{kind}_{name}_percentiles"].items():
            yield f"  {percentile}%: {value:.2f} seconds"
    yield "Avg phases:"
    for name, seconds in fields[f"{kind}_phases"].items():
        yield f"  {name}: {sum(seconds) / len(seconds):.2f} seconds"
