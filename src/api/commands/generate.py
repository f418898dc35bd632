"""`tokenmill generate`: text from a prompt, without a server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from .flags.config_file import add_config_flag
from .flags.engine import (
    SERVING,
    add_engine_flags,
    add_model_argument,
    engine_config,
    merge_model_argument,
)
from .flags.sampling import add_sampling_flags, sampling_options
from .flags.text import utf8_text
from .progress import ProgressDisplay


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="continue a prompt, without a server",
        description="Continue a prompt and stream the text to standard output.",
        examples=(
            'tokenmill generate "Once upon a time" --max-tokens 50 --temperature 0',
            "tokenmill generate model.gguf - --max-tokens 100",
        ),
    )
    add_model_argument(parser)
    parser.add_argument(
        "prompt", metavar="PROMPT", help="text to continue, or - to read it from standard input"
    )
    add_sampling_flags(parser)
    add_engine_flags(parser, leave_out=("seed", "served_model_name", "chat_template", *SERVING))
    add_config_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ConfigError, InvalidRequestError."""
    _check_order(args)
    merge_model_argument(args)
    config, options = engine_config(args), sampling_options(args)
    prompt = _standard_input() if args.prompt == "-" else utf8_text(args.prompt)
    from ...assembly import build_engine
    from ...core.requests.sampling_params import OutputKind
    from ..chat.sampling import params_with_all_room

    async def generate() -> None:
        with ProgressDisplay() as progress:
            async with build_engine(config, progress) as engine:
                progress.stop()
                params = params_with_all_room(engine, **options, output_kind=OutputKind.DELTA)
                async for output in engine.generate(prompt, params):
                    print(output.outputs[0].text, end="", flush=True)
                print()

    asyncio.run(generate())
    return 0


def _check_order(args: argparse.Namespace) -> None:
    """Raise ConfigError if the last argument is a model: the prompt is missing, or stands first."""
    last = Path(args.prompt)
    with contextlib.suppress(OSError, ValueError):  # a prompt may be no path at all
        if (last.suffix == ".gguf" and last.is_file()) or (last / "config.json").is_file():
            raise ConfigError(f"{last} is a model: write MODEL first, then the prompt")


def _standard_input() -> str:
    """The text on standard input. Raises ConfigError if it is not UTF-8, whatever the locale is."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not UTF-8: the first error is at byte {error.start}; convert it, "
            "for example with iconv"
        ) from error
