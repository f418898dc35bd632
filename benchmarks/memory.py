"""Measures the engine's resident memory in addition to torch's, and its time until it can serve.

python benchmarks/memory.py --help

Each figure comes from fresh processes. One kind only imports torch, the other loads the model as
`tokenmill.LLM` and generates once. Their difference is the engine: weights, tokenizer, scratch
memory, libraries, and the used part of the KV cache. The first round does not count: it builds the
kernels and fills the system's file cache. PSS counts a fraction of pages that processes share.
Anonymous memory belongs to the process alone; the system can drop memory that is mapped from files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from one_process import FIELDS
from recording import make_parser, record, summarize
from rich.console import Console
from rich.progress import track
from rich.table import Table

KINDS = ("torch", "tokenmill")
LIMIT_MIB = 450
LIMIT_SECONDS = 2.0

Summaries = dict[str, dict[str, dict[str, float]]]
"""Median, minimum and maximum, by kind of process and figure."""


def run_process(kind: str, args: argparse.Namespace) -> dict[str, float]:
    """The figures of a fresh process. Exits if that process fails."""
    command = [sys.executable, str(Path(__file__).parent / "one_process.py"), kind]
    command += ["--dtype", args.dtype]
    if args.model is not None:
        command += ["--model", args.model]
    if args.kv_cache_mib > 0:
        command += ["--kv-cache-mib", str(args.kv_cache_mib)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the process that measures {kind} failed: see its output above")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(args: argparse.Namespace, console: Console) -> Summaries:
    """Run all processes, one after the other."""
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for number in track(range(args.rounds + 1), "measuring", console=console, transient=True):
        for kind, found in rounds.items():
            figures = run_process(kind, args)
            if number > 0:
                found.append(figures)
    return {
        kind: {name: summarize([one[name] for one in found]) for name in found[0]}
        for kind, found in rounds.items()
    }


def beyond_torch(found: Summaries) -> dict[str, float]:
    """MiB of memory that the engine needs in addition to torch."""
    of = {kind: {name: found[kind][name]["median"] for name in FIELDS} for kind in KINDS}
    return {name: round(of["tokenmill"][name] - of["torch"][name], 1) for name in FIELDS}


def show(found: Summaries, console: Console) -> None:
    """Print the table, and the comparison with the targets."""
    beyond = beyond_torch(found)
    table = Table("MiB", "torch alone", "tokenmill", "beyond torch", box=None)
    for name, difference in beyond.items():
        medians = (f"{found[kind][name]['median']:.0f}" for kind in KINDS)
        table.add_row(name.replace("_", "-"), *medians, f"{difference:.0f}")
    console.print(table)
    load, cpu = found["tokenmill"]["load_seconds"], found["tokenmill"]["load_cpu_seconds"]
    console.print(f"resident beyond torch: {beyond['rss']:.0f} MiB (target: below {LIMIT_MIB})")
    console.print(
        f"ready after {load['median']:.2f} s, {load['lowest']:.2f} at best (target: below "
        f"{LIMIT_SECONDS:g}); CPU time {cpu['median']:.2f} s"
    )


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument(
        "--kv-cache-mib", type=int, default=16, help="size of the KV cache; 0: the engine's choice"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    console = Console()
    found = measure(args, console)
    show(found, console)
    record(args, "memory", {"beyond_torch_mib": beyond_torch(found), "processes": found})


if __name__ == "__main__":
    main()
