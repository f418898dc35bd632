"""`tokenmill draft make`: derive a draft model for speculative decoding from the served model."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ...core.config import EngineConfig
from .flags.engine import add_engine_flags, engine_config
from .flags.groups import add_numbers
from .printing import print_json
from .progress import ProgressDisplay

_ENGINE_FLAGS = (
    "model",
    "hf_overrides",
    "tokenizer",
    "chat_template",
    "dtype",
    "device",
    "kv_cache_memory",
    "num_gpu_blocks_override",
    "attention_backend",
    "plugins_file",
)

_FEW_MEASURED = 500
"""Drafts. An acceptance rate over fewer is noise."""


def add_parser(subparsers: Any) -> None:
    """Register the command and its verb."""
    parser = subparsers.add_parser(
        "draft",
        help="make a draft model for speculative decoding",
        description="A draft model drafts the next tokens of the served model: see "
        "`tokenmill serve --speculative-model`.",
        examples=("tokenmill draft make smollm2-draft",),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    make = verbs.add_parser(
        "make",
        help="train a draft head, or a few layers, to predict a model's next tokens",
        description="Generate answers with the model. Then train a draft head, which predicts the "
        "next tokens from the model's last hidden state. With --layers, train the first N layers "
        "of the model instead of a head.",
        examples=(
            "tokenmill draft make smollm2-draft",
            "tokenmill serve --speculative-model smollm2-draft",
        ),
    )
    make.add_argument(
        "output", metavar="PATH", type=Path, help="directory to write to; must be new or empty"
    )
    add_numbers(
        make,
        (
            "--layers",
            int,
            "number of layers of the model to keep; 0: train a head instead (default: 0)",
        ),
        ("--draft-vocab-size", int, "draft only the N most common tokens; 0: all (default: 8192)"),
        ("--tokens", int, "tokens of answers to train on (default: 120000)"),
        ("--steps", int, "training steps (default: 800)"),
        ("--seed", int, "seed of all random numbers (default: 0)"),
    )
    make.add_argument(
        "--prompts",
        type=Path,
        metavar="PATH",
        help="file with one prompt per line (default: built-in prompts)",
    )
    make.add_argument("--json", action="store_true", help="print JSON")
    others = [f.name for f in dataclasses.fields(EngineConfig) if f.name not in _ENGINE_FLAGS]
    add_engine_flags(make, leave_out=others)
    make.set_defaults(run=_make)


def _make(args: argparse.Namespace) -> int:
    config = engine_config(args)
    from ...assembly import make_draft_model, record_draft

    given = {
        "num_layers": args.layers,
        "draft_vocab_size": args.draft_vocab_size,
        "num_tokens": args.tokens,
        "num_steps": args.steps,
        "seed": args.seed,
    }
    with ProgressDisplay() as progress:
        made = make_draft_model(
            config,
            args.output,
            progress,
            prompts_file=args.prompts,
            **{name: value for name, value in given.items() if value is not None},
        )
    record_draft(args.output)
    if args.json:
        print_json(made)
        return 0
    kind = f"layers {', '.join(map(str, made.layers))}" if made.layers else "a draft head"
    print(f"{args.output}: {kind}, {made.num_parameters / 1e6:.1f} million parameters")
    print(
        f"accepted drafts of one token, on {made.after.num_measured} tokens not trained on: "
        f"{made.after.greedy:.1%} greedy ({made.before.greedy:.1%} before training), "
        f"{made.after.sampled:.1%} at temperature {made.temperature:g} ({made.before.sampled:.1%})"
    )
    if made.after.num_measured < _FEW_MEASURED:
        print("warning: this is too little text to train with and to measure: increase --tokens")
    return 0
