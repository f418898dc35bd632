"""`tokenmill tune`: finds the flags with the highest goodput for a workload and limits."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ..flags.engine import (
    IMAGES,
    SERVING,
    SPECULATION,
    add_engine_flags,
    add_model_argument,
    engine_config,
    given_settings,
    merge_model_argument,
)
from ..progress import ProgressDisplay
from ..simulate.compare import LEFT_OUT
from ..simulate.measure import measure
from ..simulate.vary import vary
from ..simulate.workload_flags import add_workload_flags, read_workload
from .report import Report, print_report, write_report

if TYPE_CHECKING:
    from ....planning.step_time import StepTimes
    from ....planning.workload import PlannedRequest
    from ....tuning.capacity import Planner
    from ....tuning.search import Trial
    from ....tuning.space import Settings, Space
    from ....tuning.traffic import Traffic

NOT_MEASURED = ("model", "tokenizer", "served_model_name", "seed", *IMAGES)
GIVEN, TUNED = "given", "tuned"
"""Names of the candidates that are always measured; others have the numbers of their ranks."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="find the settings with the highest goodput for a workload and limits",
        description="Simulate many settings with the step times of this machine, find the highest "
        "request rate of each within the limits, and measure the best ones on real servers.",
        examples=(
            "tokenmill tune --goodput ttft:2000 itl:200 --num-prompts 50",
            "tokenmill tune model.gguf --workload requests.jsonl --goodput e2el:10000",
            "tokenmill tune --vary max_num_seqs=16,64,256 --rounds 0",
        ),
    )
    add_model_argument(parser)
    group = parser.add_argument_group("search")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS",
                       help="limits that 99 %% of the requests keep: ttft, tpot, itl (of the gaps "
                       "between two tokens) or e2el, in milliseconds")  # fmt: skip
    group.add_argument("--trials", type=int, default=200, metavar="N",
                       help="settings to simulate (default: %(default)s)")  # fmt: skip
    group.add_argument("--vary", action="append", metavar="KEY=A,B,C",
                       help="try these values of a setting, and vary only the settings that "
                       "--vary names; may be repeated")  # fmt: skip
    group.add_argument("--measure", action="append", default=[], metavar="KEY=A,B,C",
                       help="measure the best settings with these values of a setting that "
                       "cannot be simulated, too: drafts, parallelism, precision; may be "
                       "repeated")  # fmt: skip
    group.add_argument("--finalists", type=int, default=2, metavar="N",
                       help="best settings to measure on real servers, in addition to the given "
                       "settings (default: %(default)s)")  # fmt: skip
    group.add_argument("--rounds", type=int, default=3, metavar="N",
                       help="measurements of each finalist; 0: only simulate "
                       "(default: %(default)s)")  # fmt: skip
    group.add_argument("-o", "--output-dir", type=Path, default=Path("tune"), metavar="PATH",
                       help="folder of the results; an interrupted search is continued "
                       "(default: %(default)s)")  # fmt: skip
    group.add_argument("--step-time", type=Path, metavar="PATH",
                       help="file from `tokenmill simulate measure` (default: measure "
                       "first)")  # fmt: skip
    group.add_argument("--min-cache-hit-pct", type=int, default=0, metavar="N",
                       help="this percentage of each random prompt is the same in all, as in "
                       "vLLM's auto_tune.sh (default: 0)")  # fmt: skip
    group.add_argument("--json", action="store_true", help="print JSON")
    add_workload_flags(parser, with_rate=False)
    add_engine_flags(parser, leave_out=tuple({*SERVING, *SPECULATION, "seed"}))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ....tuning.capacity import Planner
    from ....tuning.limits import Limits
    from ....tuning.reasons import explain, simplify
    from ....tuning.search import search

    merge_model_argument(args)
    limits = Limits.parse(args.goodput)
    for name, lowest in (("trials", 1), ("finalists", 1), ("rounds", 0)):
        if getattr(args, name) < lowest:
            raise ConfigError(f"--{name} must be at least {lowest}")
    given = given_settings(args)
    given.pop("seed", None)  # it is the workload's
    base = engine_config(args)
    traffic = _traffic(args)
    space = _space(args, base, given)
    variants = _variants(args, base, given, space)
    folder: Path = args.output_dir
    _open_folder(folder, _describe(traffic, given, str(limits), space))
    with ProgressDisplay() as progress:
        times = _step_times(args, base, folder, progress)
        simulated = dataclasses.replace(base, model=None)  # without what only a model needs
        planner = Planner(traffic, simulated, times, limits)
        best = 0.0

        def on_trial(count: int, trial: Trial) -> None:
            nonlocal best
            best = max(best, trial.capacity.goodput)
            wanted = min(args.trials, space.size)
            progress(f"simulating settings, best {best:.2f} req/s", count / wanted)

        trials = search(planner, space, args.trials, folder, args.seed, on_trial)
        tuned = simplify(planner, trials[0].settings)
        report = Report(
            model=times.model.name,
            limits=limits,
            num_requests=len(traffic.requests),
            num_trials=len(trials),
            num_settings=space.size,
            num_runs=planner.num_runs,
            given=planner.capacity({}),
            tuned=planner.capacity(tuned),
            settings=tuned,
            base=given,
        )
        if report.tuned.rate and tuned:
            report = dataclasses.replace(report, reasons=explain(planner, tuned))
            _write(folder, given, report)
        if report.tuned.rate and args.rounds and (tuned or variants):
            finalists = _finalists(trials, tuned, args.finalists if tuned else 0)
            finalists |= {_name(one): {**tuned, **one} for one in variants}
            requests = traffic.at_rate(report.tuned.rate)
            rounds = _measure(args, planner, requests, given, finalists, folder, progress)
            report = dataclasses.replace(report, finalists=finalists, rounds=rounds)
    _write(folder, given, report)
    print_report(report, folder, as_json=args.json)
    return 0 if report.tuned.rate else 1


def _traffic(args: argparse.Namespace) -> Traffic:
    from ....tuning.traffic import Traffic

    if not 0 <= args.min_cache_hit_pct < 100:
        raise ConfigError(f"--min-cache-hit-pct must be in [0, 100), got {args.min_cache_hit_pct}")
    if args.min_cache_hit_pct:
        if args.workload is not None or args.random_prefix_len is not None:
            raise ConfigError(
                "--min-cache-hit-pct belongs to random prompts without --random-prefix-len"
            )
        length = 512 if args.random_input_len is None else args.random_input_len
        args.random_prefix_len = length * args.min_cache_hit_pct // 100
        args.random_input_len = length - args.random_prefix_len
    requests = read_workload(args)
    return Traffic(
        requests=requests,
        is_trace=args.workload is not None and any(request.at for request in requests),
        burstiness=args.burstiness or 1.0,
        seed=args.seed,
    )


def _space(args: argparse.Namespace, base: EngineConfig, given: Mapping[str, Any]) -> Space:
    from ....tuning.space import default_space, make_space

    if not args.vary:
        return default_space(base, given, _policies(base))
    combinations = vary(args.vary, given, leave_out=LEFT_OUT)
    values = {
        key: list(dict.fromkeys(settings[key] for settings in combinations))
        for key in combinations[0]
    }
    return make_space(base, values)


def _variants(
    args: argparse.Namespace, base: EngineConfig, given: Mapping[str, Any], space: Space
) -> list[Settings]:
    """The settings of --measure, in all combinations."""
    if not args.measure:
        return []
    if not args.rounds:
        raise ConfigError("--measure needs measurements: --rounds is 0")
    for text in args.measure:
        if (name := text.partition("=")[0].strip().replace("-", "_")) in space.values:
            raise ConfigError(f"--measure {text}: {name} is simulated, so use --vary {text}")
    found = vary(args.measure, given, leave_out=NOT_MEASURED, option="--measure")
    for one in found:
        dataclasses.replace(base, **one)  # raises ConfigError
    return list(found)


def _name(variant: Settings) -> str:
    """The name of a file for settings."""
    return ",".join(f"{key}={value}" for key, value in variant.items()).replace("/", "_")


def _policies(base: EngineConfig) -> Mapping[str, Sequence[str]]:
    """The names of the providers of enabled plugins, by kind; the chosen ones first."""
    from ....core.host.listing import discover_plugins

    found: dict[str, list[str]] = {}
    for info in discover_plugins(base.plugins_file):
        if info.state == "enabled":
            for provider in sorted(info.provides, key=lambda name: name not in info.chosen):
                kind, _, name = provider.partition(":")
                found.setdefault(kind, []).append(name)
    return found


def _step_times(
    args: argparse.Namespace, base: EngineConfig, folder: Path, progress: ProgressDisplay
) -> StepTimes:
    from ....planning.step_time import read_step_times

    file = args.step_time or folder / "step-time.json"
    if args.step_time is None and not file.exists():
        measure(base, 30.0, progress).write(file)
    return read_step_times(file)


def _finalists(trials: Sequence[Trial], tuned: Settings, count: int) -> dict[str, Settings]:
    """The settings to measure, by the names of their files."""
    found: dict[str, Settings] = {GIVEN: {}, **({TUNED: tuned} if tuned else {})}
    for rank, trial in enumerate(trials[1:], 2):
        if len(found) > count:
            break
        if trial.capacity.rate and trial.settings and trial.settings not in found.values():
            found[f"number-{rank}"] = trial.settings
    return found


def _measure(
    args: argparse.Namespace,
    planner: Planner,
    requests: Sequence[PlannedRequest],
    given: Mapping[str, Any],
    finalists: Mapping[str, Settings],
    folder: Path,
    progress: ProgressDisplay,
) -> Any:
    from ....tuning.rounds import Measuring

    files = {}
    for name, settings in finalists.items():
        files[name] = folder / f"{name}.yaml"
        _write_config(files[name], {**given, **settings})
    measuring = Measuring(
        requests=requests,
        limits=planner.limits,
        vocab_size=planner.times.model.vocab_size,
        folder=folder,
    )
    return measuring.measure(files, args.rounds, progress)


# The folder


def _describe(traffic: Traffic, given: Mapping[str, Any], limits: str, space: Space) -> str:
    """A digest of what is searched for."""
    parts = (traffic.requests, traffic.burstiness, sorted(given.items()), limits, space.values)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _open_folder(folder: Path, digest: str) -> None:
    """Make the folder, or check that it belongs to the same search. Raises ConfigError."""
    marker = folder / "search.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not marker.exists():
            marker.write_text(json.dumps({"sha256": digest}) + "\n", encoding="utf-8")
        known = json.loads(marker.read_text(encoding="utf-8")).get("sha256")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"--output-dir {folder} cannot be used: {error}") from error
    if known != digest:
        raise ConfigError(
            f"--output-dir {folder} holds a search with another workload, limits or flags: choose "
            "another folder, or remove it"
        )


def _write_config(path: Path, settings: Mapping[str, Any]) -> None:
    """Write a file for `serve --config`."""
    lines = [f"{key.replace('_', '-')}: {json.dumps(value)}\n" for key, value in settings.items()]
    path.write_text("".join(lines) or "{}\n", encoding="utf-8")


def _write(folder: Path, given: Mapping[str, Any], report: Report) -> None:
    _write_config(folder / "serve.yaml", {**given, **report.recommended})
    write_report(folder / "report.json", report)
