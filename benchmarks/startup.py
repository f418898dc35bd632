"""Measures the time until an engine and a server are ready, and splits it; and the memory it takes.

python benchmarks/startup.py --help

Every start is a fresh process that reads its model from the system's file cache. The models are the
default one, and random weights in the shapes of Qwen3-0.6B and Llama-3.2-1B, which the program
writes (5 GB) unless --folder has them. The first round does not count: it compiles kernels and
fills the file cache. Parts are seconds of the engine's start without the parts inside them.
"ready" is the engine's start from the birth of the process, "serve" the time until `tokenmill
serve` answers GET /ready with 200. "cpu" is the engine's CPU time on all cores: on a machine where
other programs compute, it says more than the time that passed. The target is 2.5 s, and 1.5 s per
GB of the model's files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Kind
from random_models import SHAPES, write_gguf, write_safetensors
from recording import make_parser, make_table, record, summarize
from rich.console import Console
from rich.progress import track

from tokenmill.assembly import verify_default_model
from tokenmill.core.interfaces import no_progress

DEFAULT = "135M 4-bit"
MODELS: Mapping[str, tuple[str, Kind | None]] = {
    "0.6B Q4_K": ("0.6B", Kind.Q4_K),
    "1B Q4_0": ("1B", Kind.Q4_0),
    "1B Q4_K": ("1B", Kind.Q4_K),
    "1B bf16": ("1B", None),
}
"""Shapes and types of models with random weights; None: safetensors in bfloat16."""
BASE_SECONDS, SECONDS_PER_GB = 2.5, 1.5
READY_TIMEOUT_S = 300.0

Figures = dict[str, float]


def find_model(name: str, folder: Path, seed: int) -> Path:
    """The model's path. One with random weights is written if it is missing."""
    if name == DEFAULT:
        return verify_default_model(no_progress)
    shape, kind = MODELS[name]
    path = folder / (name.replace(" ", "-") + ("" if kind is None else ".gguf"))
    if path.exists():
        return path
    print(f"writing {path}")
    partial = path.with_name(f"partial-{path.name}")
    if kind is None:
        write_safetensors(partial, SHAPES[shape], seed)
    else:
        write_gguf(partial, SHAPES[shape], kind, seed)
    return partial.rename(path)


def size_of(model: Path) -> int:
    """Bytes of the files with weights."""
    files = model.glob("*.safetensors") if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


def start_engine(model: Path) -> dict[str, Any]:
    """The figures of an engine's start. Exits if it fails."""
    command = [sys.executable, str(Path(__file__).parent / "one_start.py"), "--model", str(model)]
    command += ["--spawned", str(time.time())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the start of {model} failed: see its output above")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def start_server(model: Path) -> float:
    """Seconds until a server is ready. Exits if it does not get so."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "tokenmill", "serve", "--model", str(model), "--port", "0"]
    with subprocess.Popen(
        [*command, "--device", "cpu"], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            line = ""
            for line in server.stderr:
                if '"event": "listening"' in line:
                    break
            else:
                sys.exit(f"the server of {model} ended: {line}")
            address = json.loads(line)["address"]
            with urllib.request.urlopen(f"{address}/ready", timeout=READY_TIMEOUT_S):
                return time.perf_counter() - begun
        finally:
            server.kill()


def measure(models: Mapping[str, Path], rounds: int, console: Console) -> dict[str, Any]:
    """Start all models in turns, `rounds` times after the first."""
    found: dict[str, list[dict[str, Figures]]] = {name: [] for name in models}
    for number in track(range(rounds + 1), "measuring", console=console, transient=True):
        for name, model in models.items():
            one = start_engine(model)
            times = {key: one[key] for key in ("ready", "cpu", "first_token")}
            times["serve"] = start_server(model)
            parts = {"parts": one["parts"], "cpu_parts": one["cpu_parts"]}
            if number > 0:
                found[name].append({"s": times, **parts, "mib": one["memory"]})
    return {name: summarize_starts(starts) for name, starts in found.items()}


def summarize_starts(starts: list[dict[str, Figures]]) -> dict[str, Any]:
    """Median, lowest and highest of every figure; parts that did not occur took no time."""
    summary: dict[str, Any] = {}
    for group in starts[0]:
        keys = dict.fromkeys(key for start in starts for key in start[group])
        summary[group] = {
            key: summarize([start[group].get(key, 0.0) for start in starts]) for key in keys
        }
    return summary


def add_targets(found: dict[str, Any], models: Mapping[str, Path]) -> None:
    """Add size, target, and the ratio of the time to the target."""
    for name, model in models.items():
        target = BASE_SECONDS + SECONDS_PER_GB * size_of(model) / 1e9
        found[name]["file_gb"] = round(size_of(model) / 1e9, 3)
        found[name]["target_s"] = round(target, 2)
        for key in ("serve", "cpu"):
            found[name][f"{key}_of_target"] = round(found[name]["s"][key]["lowest"] / target, 2)


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print the tables. Times are minima, because other work only adds to them."""
    titles = {"s": "seconds", "parts": "parts", "cpu_parts": "CPU seconds", "mib": "MiB"}
    for group, title in titles.items():
        keys = dict.fromkeys(key for one in found.values() for key in one[group])
        table = make_table(title, *(key.replace("_", " ") for key in keys))
        for name, one in found.items():
            cells = (f"{one[group][key]['lowest']:.2f}" for key in keys if key in one[group])
            if group == "mib":
                cells = (f"{one[group][key]['median']:.0f}" for key in keys)
            table.add_row(name, *cells)
        console.print(table)
    for name, one in found.items():
        console.print(
            f"{name}, {one['file_gb']} GB: serve {one['serve_of_target']}, CPU time "
            f"{one['cpu_of_target']} of the target, {one['target_s']} s"
        )


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    names = [DEFAULT, *MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--folder", type=Path, help="keeps the models; None: a temporary one")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each model that count")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = {name: find_model(name, folder, args.seed) for name in args.models}
        found = measure(models, args.rounds, console)
        add_targets(found, models)
    args.folder = None  # a path of this machine
    show(found, console)
    record(args, "startup", {"starts": found})


if __name__ == "__main__":
    main()
