"""`tokenmill generate`: text from a prompt, without a server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from ...core.errors import ConfigError
from .flags.engine import SERVING, add_engine_flags, engine_config
from .flags.sampling import add_sampling_flags, sampling_options
from .progress import ProgressDisplay


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "generate",
        help="continue a prompt, without a server",
        description="Continue a prompt and stream the text to standard output.",
        examples=(
            'tokenmill generate "Once upon a time" --max-tokens 50 --temperature 0',
            "tokenmill generate - --model model.gguf --max-tokens 100",
        ),
    )
    parser.add_argument(
        "prompt", metavar="PROMPT", help="text to continue, or - to read it from standard input"
    )
    add_sampling_flags(parser)
    add_engine_flags(parser, leave_out=("seed", "served_model_name", *SERVING))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ConfigError, InvalidRequestError."""
    config, options = engine_config(args), sampling_options(args)
    prompt = _standard_input() if args.prompt == "-" else args.prompt
    from ...assembly import build_engine
    from ...core.sampling_params import OutputKind
    from ..openai.sampling import params_with_all_room

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


def _standard_input() -> str:
    """The text on standard input. Raises ConfigError if it is not UTF-8, whatever the locale is."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not UTF-8: the first error is at byte {error.start}; convert it, "
            "for example with iconv"
        ) from error
