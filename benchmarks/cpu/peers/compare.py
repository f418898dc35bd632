"""Compares tokenmill with each installed peer on the same workloads, in turns, on a quiet CPU.

python benchmarks/cpu/peers/compare.py --help

`make bench-cpu-peers` installs the peers first, each in its own environment. In every round the
engines run one after the other, so that a change of the machine affects all. During a workload the
CPU time of other processes is measured. If they used too much, the workload is measured again, and
marked as noisy if the machine never becomes quiet. New rounds are added to those in the file of
--json, so that rounds can be made at different times.

TOKENMILL_CPU_ISA names an instruction set to compare: tokenmill computes with it, and llama.cpp
must have been built for it (`make bench-cpu-peers ARGS="--instruction-set avx2"`).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import Any

from engines import HERE, NAMES, PRECISIONS, WORKLOADS, Engine, engines, engines_for
from instruction_sets import InstructionSet, in_use, named_set
from quiet import foreign_share, read_cpu
from report import NOISY, Measurement, markdown, summarize_all

sys.path.insert(0, str(HERE.parent.parent))

from recording import describe_machine
from rich.console import Console

from tokenmill.backends.weights.default_model import find_default_model

console = Console(stderr=True)


class EngineFailed(Exception):
    """A worker failed. The message is the end of its log."""


def parse_args() -> Namespace:
    parser = ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    parser.add_argument(
        "--peers", type=Path, default=HERE.parent / ".peers", help="folder of the peers"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of all engines; 0: only show the file"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        help="GGUF files of --peers to compare on, without .gguf; None: the default model",
    )
    parser.add_argument("--threads", type=int, default=2, help="one per physical core")
    parser.add_argument("--engines", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument(
        "--output-len", type=int, default=128, help="tokens per request of single and batch"
    )
    parser.add_argument(
        "--max-foreign",
        type=float,
        default=NOISY,
        help="fraction of all cores that other processes may use",
    )
    parser.add_argument("--attempts", type=int, default=3, help="measurements of a noisy workload")
    parser.add_argument("--emulated", action="store_true", help="record that this CPU is emulated")
    parser.add_argument("--quick", action="store_true", help="only check that everything works")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.attempts, args.output_len = 1, 1, 16
    return args


def main() -> None:
    args = parse_args()
    chosen = list(choose(args)) if args.rounds else []
    measurements = read_rounds(args)
    first = 1 + max((m.round for m in measurements), default=-1)
    for round_number in range(first, first + args.rounds):
        for engine in chosen:
            console.print(f"round {round_number + 1} of {first + args.rounds}: {engine.label}")
            try:
                measurements += measure_quietly(engine, args, round_number)
            except EngineFailed as error:
                console.print(f"{engine.label} failed, others continue:\n{error}", markup=False)
            write(args, chosen, measurements)  # after each engine, so that an abort loses little
    print(markdown(measurements, read_instruction_set(args)))


def choose(args: Namespace) -> Iterator[Engine]:
    """The engines that are selected and installed. Prints the missing ones."""
    known = engines(args.peers, find_default_model(), named_set())
    known = [engine for engine in known if engine.precision in args.precisions]
    if args.models:
        known = engines_for(args.models, args.peers, named_set())
    for engine in known:
        if engine.name not in args.engines:
            continue
        if engine.missing:
            console.print(f"left out: {engine.label}, {engine.missing[0]} is missing")
            continue
        yield engine


def measure_quietly(engine: Engine, args: Namespace, round_number: int) -> list[Measurement]:
    """Measure every workload of one engine; repeat noisy ones, and keep the quietest attempt."""
    best: dict[str, Measurement] = {}
    workloads = [name for name in args.workloads if name in engine.workloads]
    for _ in range(args.attempts):
        for found in _measure(engine, args, workloads):
            found = replace(found, round=round_number)
            known = best.get(found.workload)
            if known is None or found.foreign_share < known.foreign_share:
                best[found.workload] = found
        workloads = [name for name in workloads if best[name].foreign_share > args.max_foreign]
        if not workloads:
            break
        console.print(f"  other processes were busy, repeating: {', '.join(workloads)}")
    return list(best.values())


def _measure(engine: Engine, args: Namespace, workloads: list[str]) -> Iterator[Measurement]:
    command = engine.command(args.threads, workloads, args.output_len)
    # Overrides a setting of the shell, and applies to processes that the worker starts, too.
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=PIPE, stderr=log, text=True, env=env) as worker,
    ):
        assert worker.stdout is not None
        for line in worker.stdout:
            message = _message(line)
            if message is None:
                continue
            if message["event"] == "begin":
                before, began = read_cpu(worker.pid), time.perf_counter()
                continue
            seconds = time.perf_counter() - began
            share = foreign_share(before, read_cpu(worker.pid), seconds)
            console.print(
                f"  {message['workload']}: {_show(message['figures'])}, others {share:.1%}"
            )
            yield Measurement(
                engine=engine.name,
                precision=engine.precision,
                workload=message["workload"],
                figures=message["figures"],
                seconds=seconds,
                foreign_share=share,
            )
        if worker.wait() != 0:
            log.seek(0)
            raise EngineFailed(log.read()[-4000:])


def _message(line: str) -> dict[str, Any] | None:
    """Parse a line of worker.py; None for a line that the engine printed."""
    if not line.startswith('{"event"'):
        return None
    found: dict[str, Any] = json.loads(line)
    return found


def _show(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def read_rounds(args: Namespace) -> list[Measurement]:
    """The rounds that earlier runs wrote to the file of --json."""
    if args.json is None or not args.json.exists():
        return []
    content = json.loads(args.json.read_text(encoding="utf-8"))
    if args.rounds and content["settings"] != (now := _settings(args)):
        sys.exit(
            f"{args.json} has rounds with other settings, {content['settings']} instead of {now}: "
            "name another file with --json, or remove it"
        )
    return [Measurement(**found) for found in content["measurements"]]


def read_instruction_set(args: Namespace) -> InstructionSet | None:
    """The set of this run, or of the file if it is only shown; None if the file names none."""
    if args.rounds or args.json is None or not args.json.exists():
        return in_use(is_emulated=args.emulated)
    found = json.loads(args.json.read_text(encoding="utf-8"))["settings"].get("instruction_set")
    return None if found is None else InstructionSet(**found)


def write(args: Namespace, chosen: Sequence[Engine], measurements: Sequence[Measurement]) -> None:
    """Write all rounds so far."""
    if args.json is not None:
        content = {
            "benchmark": "cpu_peers",
            "date": datetime.now(UTC).date().isoformat(),
            "command": _command(sys.argv),
            "settings": _settings(args),
            "versions": {engine.name: engine.version for engine in chosen},
            "machine": describe_machine(),
            "summary": {
                label: {workload: asdict(summary) for workload, summary in found.items()}
                for label, found in summarize_all(measurements).items()
            },
            "measurements": [asdict(m) for m in measurements],
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _command(words: Sequence[str]) -> str:
    """The command line without --peers, which holds a path of this machine."""
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before != "--peers" and not word.startswith("--peers")
    ]
    return shlex.join(["python", *kept])


def _settings(args: Namespace) -> dict[str, object]:
    """The settings that rounds in one file must share."""
    return {
        "threads": args.threads,
        "output_len": args.output_len,
        "processor": describe_machine()["processor"],
        "instruction_set": asdict(in_use(is_emulated=args.emulated)),
    }


if __name__ == "__main__":
    main()
