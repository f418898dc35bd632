"""Tunes three workloads with `tokenmill tune`, and confirms each claimed gain by a separate run.

python benchmarks/tuned_workloads.py --help

The workloads are chats that share a system prompt, long prompts with short answers, and a batch of
short prompts. A claim is confirmed with other requests of the same lengths, on servers that start
anew: the given and the tuned settings take turns, at the request rate that the tuning found. The
verdict is that of `tokenmill tune`: the worst round must beat the best one of the given settings.
--confirmations runs several of them, each with other requests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recording import describe_machine, make_parser, record
from rich.progress import Progress

from tokenmill.planning.step_time import read_step_times
from tokenmill.planning.workload import SyntheticWorkload
from tokenmill.tuning.limits import Limits
from tokenmill.tuning.rounds import Measuring, Verdict
from tokenmill.tuning.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Random requests, and the limits that they have to keep."""

    num_prompts: int
    random_prefix_len: int = 0
    random_input_len: int
    random_output_len: int
    random_range_ratio: float = 0.3
    limits: Sequence[str] = ()

    def draw(self, seed: int) -> SyntheticWorkload:
        """The requests with this seed."""
        fields = {name: value for name, value in asdict(self).items() if name != "limits"}
        return SyntheticWorkload(**fields, seed=seed)

    @property
    def words(self) -> list[str]:
        """The flags of `tokenmill tune`."""
        fields = {name: value for name, value in asdict(self).items() if name != "limits"}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
        return [*words, *(["--goodput", *self.limits] if self.limits else [])]


WORKLOADS = {
    "chat with a shared prefix": Workload(
        num_prompts=24,
        random_prefix_len=256,
        random_input_len=40,
        random_output_len=32,
        limits=("ttft:6000", "itl:1000"),
    ),
    "long prompts, short answers": Workload(
        num_prompts=12, random_input_len=500, random_output_len=8, limits=("e2el:15000",)
    ),
    "a batch of short prompts": Workload(num_prompts=64, random_input_len=24, random_output_len=24),
}


def main() -> None:
    """Tune, confirm, and record."""
    parser = make_parser(__doc__)
    parser.add_argument("--step-time", type=Path, required=True, help="of this machine")
    parser.add_argument("--folder", type=Path, default=Path("build/tuned"), help="of the searches")
    parser.add_argument("--trials", type=int, default=100, help="settings to simulate")
    parser.add_argument("--rounds", type=int, default=4, help="measurements of each settings")
    parser.add_argument("--confirmations", type=int, default=1, help="separate runs")
    args = parser.parse_args()
    results = {name: run(name, workload, args) for name, workload in WORKLOADS.items()}
    write(args, results)


def write(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write the file of --json, and beside it a page with the same name."""
    args.step_time, args.folder = str(args.step_time.name), str(args.folder.name)
    record(args, "tuned_workloads", {"results": results})
    if args.json is not None:
        args.json.with_suffix(".md").write_text("\n".join(page(args, results)), encoding="utf-8")


def page(args: argparse.Namespace, results: dict[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    machine = describe_machine()
    yield "# Three tuned workloads"
    yield ""
    yield "Written by `python benchmarks/tuned_workloads.py`: the default model on"
    yield f"{machine['processor']}, {machine['cores']} cores, {machine['system']}."
    yield "The load says how many other programs computed meanwhile. Goodputs are in requests per"
    yield "second: median (lowest to highest) of the rounds."
    yield ""
    yield row(
        "workload", "run", "load", "settings", "given", "tuned", "rounds won", "in all rounds"
    )
    yield row(*["---"] * 8)
    for name, found in results.items():
        settings = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
        if not found["rounds"]:
            load = found["load_average_before"]
            yield row(name, "tuning", load, "none is better in the simulation", *[""] * 4)
            continue
        runs = [("tuning", found), *(("separate run", one) for one in found["confirmed"])]
        for kind, one in runs:
            given, tuned = goodputs(one["rounds"])
            won = sum(b > a for a, b in zip(given, tuned, strict=True))
            verdict = "better" if one["is_better"] else "not distinguishable"
            figures = spread(given), spread(tuned), f"{won} of {len(given)}", verdict
            yield row(name, kind, one["load_average_before"], settings, *figures)
    yield ""


def row(*cells: object) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def goodputs(rounds: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Goodputs of the given and of the tuned settings, in the order of the rounds."""
    given = [one["goodput"] for one in rounds if one["candidate"] == "given"]
    return given, [one["goodput"] for one in rounds if one["candidate"] == "tuned"]


def spread(values: Sequence[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def run(name: str, workload: Workload, args: argparse.Namespace) -> dict[str, Any]:
    """Tune a workload; returns the figures, and those of the second run if a gain is claimed."""
    folder = args.folder / name.replace(" ", "-").replace(",", "")
    flags = ["-o", str(folder), "--step-time", str(args.step_time), "--seed", str(args.seed)]
    flags += ["--trials", str(args.trials), "--rounds", str(args.rounds), "--finalists", "1"]
    command = [sys.executable, "-m", "tokenmill", "tune", *workload.words, *flags, "--json"]
    before = load_average()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads(done.stdout)
    found = {
        "words": workload.words,
        "load_average_before": before,
        "simulated": {one: figures(report[one]) for one in ("given", "tuned")},
        "settings": report["settings"],
        "recommended": report["recommended"],
        "rounds": report["rounds"],
        "gain": report["gain"],
        "is_better": report["is_better"],
    }
    seeds = range(args.seed + 1, args.seed + 1 + args.confirmations)
    found["confirmed"] = [
        confirm(workload, report["tuned"]["rate"], folder, seed, args.rounds, args.step_time)
        for seed in (seeds if report["is_better"] else ())
    ]
    print(json.dumps({name: found}, indent=2), flush=True)
    return found


def figures(capacity: dict[str, Any]) -> dict[str, Any]:
    """The rate and the goodput of a simulated capacity, in requests per second."""
    return {"rate": capacity["rate"], "goodput": capacity["goodput"]}


def confirm(
    workload: Workload, rate: float | None, folder: Path, seed: int, num_rounds: int, times: Path
) -> dict[str, Any]:
    """Measure other requests with both settings. `rate` None: all at once."""
    before = load_average()
    traffic = Traffic(requests=workload.draw(seed).draw(), is_trace=False, seed=seed)
    second = folder / f"confirmed-{seed}"
    second.mkdir(exist_ok=True)
    measuring = Measuring(
        requests=traffic.at_rate(float("inf") if rate is None else rate),
        limits=Limits.parse(workload.limits),
        vocab_size=read_step_times(times).model.vocab_size,
        folder=second,
    )
    files = {name: folder / f"{name}.yaml" for name in ("given", "tuned")}
    with Progress() as progress:
        task = progress.add_task("confirming", total=1.0)
        rounds = measuring.measure(
            files, num_rounds, lambda stage, part: progress.update(task, completed=part)
        )
    fields = [asdict(one) for one in rounds]
    given, tuned = goodputs(fields)
    verdict = Verdict(given=given, tuned=tuned)
    return {
        "seed": seed,
        "load_average_before": before,
        "rounds": fields,
        "gain": verdict.gain,
        "is_better": verdict.is_better,
    }


def load_average() -> Any:
    """The load of this machine now: more than its cores means that others compute."""
    return describe_machine()["load_average"]


if __name__ == "__main__":
    main()
