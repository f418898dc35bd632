"""`tokenmill bench throughput` and `latency`: measure an engine without a server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
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
from .refused import LATENCY, THROUGHPUT, add_refused
from .saving import add_html_flag, save_json, save_text

if TYPE_CHECKING:
    from ....core.contract.client import EngineClient

Measure = Callable[[argparse.Namespace, "EngineClient", ProgressDisplay], Awaitable[dict[str, Any]]]


def add_throughput_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "throughput",
        help="requests and tokens per second of an engine without a server",
        description="Give all requests to an engine at once, with random prompts, greedily.",
        examples=("tokenmill bench throughput --num-prompts 64 --input-len 200 --output-len 50",),
    )
    _add_flags(parser, num_prompts=1000, input_len=1024)
    add_numbers(parser, ("--num-warmups", 0, "prompts before the measurement"))
    for flag, only in (("--dataset-name", "random"), ("--backend", "vllm")):
        parser.add_argument(flag, choices=[only], help=argparse.SUPPRESS)
    parser.add_argument("--async-engine", action="store_true", help=argparse.SUPPRESS)
    add_refused(parser, THROUGHPUT)
    _finish(parser, _throughput)


def add_latency_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "latency",
        help="seconds of one batch in an engine without a server",
        description="Answer one batch of random prompts again and again.",
        examples=("tokenmill bench latency --batch-size 4 --num-iters 10",),
    )
    _add_flags(parser, num_prompts=None, input_len=32)
    add_numbers(
        parser,
        ("--batch-size", 8, "requests of the batch"),
        ("--num-iters", 30, "measured batches"),
        ("--num-iters-warmup", 10, "batches before these"),
    )
    add_refused(parser, LATENCY)
    _finish(parser, _latency)


def _add_flags(parser: Any, *, num_prompts: int | None, input_len: int) -> None:
    add_model_argument(parser)
    if num_prompts is not None:
        add_numbers(parser, ("--num-prompts", num_prompts, "requests"))
        for name in ("input_len", "output_len"):
            alias = f"--random-{name.replace('_', '-')}"
            # The first default of several options with one destination would count.
            parser.add_argument(
                alias,
                dest=name,
                type=int,
                metavar="N",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
    add_numbers(
        parser,
        ("--input-len", input_len, "tokens of each prompt"),
        ("--output-len", 128, "tokens of each answer"),
        ("--n", 1, "answers to each prompt"),
    )
    parser.add_argument("--output-json", type=Path, metavar="PATH", help="write figures to a file")
    add_html_flag(parser)


def _finish(parser: Any, measure: Measure) -> None:
    # Random prompts are repeated, and would be in the cache.
    add_engine_flags(parser, leave_out=("served_model_name", "chat_template", *SERVING))
    add_config_flag(parser)
    parser.set_defaults(run=lambda args: _run(args, measure), enable_prefix_caching=False)


def _run(args: argparse.Namespace, measure: Measure) -> int:
    merge_model_argument(args)
    for name in ("num_prompts", "input_len", "output_len", "n", "batch_size", "num_iters"):
        if getattr(args, name, 1) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    config = engine_config(args)
    count = getattr(args, "num_prompts", 0) or args.batch_size
    count = max(count, getattr(args, "num_warmups", 0))
    waiting = max(config.max_num_queued_reqs, count * args.n)
    config = replace(config, max_num_queued_reqs=waiting)
    from ....assembly import build_engine

    async def run() -> dict[str, Any]:
        with ProgressDisplay() as progress:
            async with build_engine(config, progress) as engine:
                return await measure(args, engine, progress)

    fields = asyncio.run(run())
    if args.output_json is not None:
        save_json(args.output_json, fields)
    if args.html is not None:
        from ....bench.reports.page import fields_page

        save_text(args.html, fields_page(f"bench {args.verb}", fields))
    return 0


async def _throughput(
    args: argparse.Namespace, engine: EngineClient, progress: ProgressDisplay
) -> dict[str, Any]:
    from ....bench.in_process import answer_all, measure_throughput, params, random_prompts

    size, count = engine.info.vocab_size, args.num_prompts
    every = random_prompts(size, args.num_warmups + count, args.input_len, args.seed)
    prompts, wanted = every[args.num_warmups :], params(args.output_len, args.n, 0.0)
    await answer_all(engine, every[: args.num_warmups], wanted)
    found = await measure_throughput(engine, prompts, wanted)
    progress.stop()
    total = found.num_prompt_tokens + found.num_output_tokens
    print(
        f"Throughput: {count / found.seconds:.2f} requests/s, "
        f"{total / found.seconds:.2f} total tokens/s, "
        f"{found.num_output_tokens / found.seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {found.num_prompt_tokens}")
    print(f"Total num output tokens:  {found.num_output_tokens}")
    return found.fields(engine.model_name)


async def _latency(
    args: argparse.Namespace, engine: EngineClient, progress: ProgressDisplay
) -> dict[str, Any]:
    from ....bench.in_process import latency_fields, measure_latency, params, random_prompts

    prompts = random_prompts(engine.info.vocab_size, args.batch_size, args.input_len, args.seed)
    wanted = params(args.output_len, args.n, 1.0)
    every = args.num_iters_warmup + args.num_iters
    seconds = await measure_latency(
        engine, prompts, wanted, every, lambda done: progress("batches", done / every)
    )
    progress.stop()
    fields = latency_fields(engine.model_name, seconds[args.num_iters_warmup :])
    print(f"Avg latency: {fields['avg_latency']:.4f} seconds")
    for percentage, value in fields["percentiles"].items():
        print(f"{percentage}% percentile latency: {value:.4f} seconds")
    return fields
