"""Checks and times attention on a GPU, within nine minutes, and writes a report.

python benchmarks/gpu/check.py --help

`make gpu-check` runs it with the machine's own python3, which has torch, triton and transformers.
Other packages come from the bundle of `make gpu-bundle`, if there is one. Every part has its own
process and time limit, and the reports are rewritten after each part, so that a crash, a hang or an
abort does not lose the results of other parts. The exit status is 1 if a check failed, 2 if the
checks could not run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bundle import FOLDER, REPOSITORY, BundleError, environment, install
from gpu_report import count_outcomes, markdown
from parts import Deadline, Ended, Part, kill_running, not_begun, run, run_all
from pytest_parts import AUTO, CHECKS, Check, read_lines

HERE = Path(__file__).parent
RESULTS = REPOSITORY / "benchmarks" / "results"
NAME = "gpu_check"
ON_GPU = {
    "backends": [
        # Triton comes first, because it is the slowest: it compiles kernels for every shape.
        *("triton", "flash-attn,triton", "torch", "cuda-paged", "flash-attn", "xformers"),
        *("flash-attn,cuda-paged", "xformers,torch", AUTO),
    ],
    "contenders": [
        *("flash-kernel-16", "flash-kernel-128", "torch-sdpa", "cuda-paged"),
        *("triton", "flash-attn", "xformers", "torch", "flash-kernel-256"),
    ],
    "engines": ["triton", "cuda-paged", "flash-attn", "transformers"],
    "select": "",
}
ON_CPU = {
    "backends": ["torch", "cpu", AUTO],
    "contenders": ["torch-sdpa", "torch", "cpu"],
    "engines": ["torch", "transformers"],
    "select": "plain or blocks or chunked-swap",
}
"""A rehearsal with some of the checks; all of them would take minutes."""
GRACE_SECONDS = 10.0
"""Time after the deadline until this program kills itself."""
MACHINE_SHARE = 0.25
CHECKS_SHARE = 0.6
ENGINES_SHARE = 0.5
"""Maximum time of these parts, as a fraction of the time that is left when they begin."""
LEAST_SECONDS = 8.0
"""Minimum time that must be left to begin a benchmark."""


class Checkup:
    """Runs all parts, and keeps the results so far in the report files."""

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._deadline = Deadline(args.deadline)
        self.found: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="minutes"),
            "commit": _commit(),
            "rehearsal": args.device == "cpu",
            "is_complete": False,
            "seconds": 0,
            "machine": {},
            "installed": [],
            "checks": [],
            "engines": [],
            "kernels": [],
            "benchmarks": [],
        }

    def run(self, work: Path) -> int:
        """Run all parts, one after the other. Returns the exit status."""
        site = work / "site"
        machine = self._describe_machine(site)
        if not machine.is_ok:
            print(machine.tail, flush=True)
            return 2
        try:
            capability = self.found["machine"].get("capability")
            self.found["installed"] = install(self._args.bundle, site, capability)
        except BundleError as error:
            print(error, flush=True)
            return 2
        self.write()
        self._check_backends(site, work)
        self._time_engines(site, work)
        self._time_kernels(site, work)
        self.found["is_complete"] = not self._was_cut_off()
        self.write()
        print(f"reports: {self._args.output / NAME}.md and .json", flush=True)
        return int(any(not check["is_ok"] for check in self.found["checks"]))

    def write(self) -> None:
        """Write both reports. Each file is replaced at once, so that it is never incomplete."""
        self.found["seconds"] = round(self._args.deadline - self._deadline.left())
        self._args.output.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            ("json", json.dumps(self.found, indent=1) + "\n"),
            ("md", markdown(self.found)),
        ):
            new = self._args.output / f"{NAME}.{suffix}.new"
            new.write_text(text, encoding="utf-8")
            new.replace(new.with_suffix(""))

    def _describe_machine(self, site: Path) -> Ended:
        command = [sys.executable, str(HERE / "machine.py"), "--device", self._args.device]
        part = Part(name="machine", command=command, environment=environment(site))
        ended = run(part, REPOSITORY, self._deadline.part(MACHINE_SHARE))
        if ended.is_ok:
            self.found["machine"] = json.loads(ended.tail.splitlines()[-1])
            for name, value in self.found["machine"].items():
                print(f"{name}: {value}", flush=True)
        return ended

    def _check_backends(self, site: Path, work: Path) -> None:
        """Run checks in parallel, because they do not measure times."""
        checks = [
            Check(
                backend=backend,
                kind=kind,
                device=self._args.device,
                select=self._args.select,
                results=work / f"{backend}-{kind}.jsonl",
            )
            for kind in CHECKS
            for backend in self._args.backends
            if (backend == AUTO) == (kind == AUTO)
        ]
        of_name, surroundings = {check.name: check for check in checks}, environment(site)
        run_all(
            [check.part(surroundings) for check in checks],
            REPOSITORY,
            self._deadline.part(CHECKS_SHARE),
            self._args.jobs,
            lambda ended: self._add_check(ended, of_name[ended.name]),
            lambda ended: of_name[ended.name].rest(surroundings, ended),
        )

    def _add_check(self, ended: Ended, check: Check) -> None:
        """Add the results of a check. It is a success if no test failed, and at least one ran."""
        tests = check.found()
        is_ok = ended.is_ok and bool(tests)
        entry = {"backend": check.backend, "part": check.kind, "is_ok": is_ok, "tests": tests}
        shown = replace(ended, tail="") if is_ok else ended
        self.found["checks"].append(asdict(shown) | entry)
        places = list(CHECKS), self._args.backends
        self.found["checks"].sort(
            key=lambda c: (places[1].index(c["backend"]), places[0].index(c["part"]))
        )
        counts = ", ".join(f"{n} {what}" for what, n in sorted(count_outcomes(tests).items()))
        print(f"{ended.name}: {ended.status} in {ended.seconds} s: {counts}", flush=True)
        self.write()

    def _time_engines(self, site: Path, work: Path) -> None:
        """Time whole engines one after the other, each alone on the device."""
        last = self._deadline.part(ENGINES_SHARE if self._args.contenders else 1.0)
        contenders = ["model", *self._args.engines] if self._args.engines else []
        for index, contender in enumerate(contenders):
            deadline = last.part(1 / (len(contenders) - index)) if index else last
            file = work / f"{contender}-decoding.jsonl"
            flags = ["--output", str(file), "--model", str(work / "model")]
            flags += ["--device", self._args.device]
            flags += ["--miniature"] if self._args.device == "cpu" else []
            part = Part(
                name=f"decodes, {contender}",
                command=[sys.executable, str(HERE / "decoding.py"), contender, *flags],
                environment=environment(site),
            )
            self._add_times("engines", run(part, REPOSITORY, deadline), read_lines(file))

    def _time_kernels(self, site: Path, work: Path) -> None:
        """Time the contenders one after the other, each alone on the device."""
        contenders = self._args.contenders
        for index, contender in enumerate(contenders):
            deadline = self._deadline.part(1 / (len(contenders) - index))
            if deadline.left() < LEAST_SECONDS:
                self._add_times("kernels", not_begun(contender), [])
                continue
            if contender == "flash-kernel-256" and self._has_timed("flash-kernel-128"):
                continue  # only for the one generation that does not support smaller blocks
            file = work / f"{contender}.jsonl"
            ended = run(self._kernel_part(contender, site, file, deadline), REPOSITORY, deadline)
            self._add_times("kernels", ended, read_lines(file))

    def _add_times(self, what: str, ended: Ended, lines: list[dict[str, Any]]) -> None:
        self.found[what] += lines
        self.found["benchmarks"].append(asdict(ended))
        print(f"{ended.tail}\n{ended.name}: {ended.status} in {ended.seconds} s", flush=True)
        self.write()

    def _has_timed(self, contender: str) -> bool:
        rows = self.found["kernels"]
        return any(row["contender"] == contender and "error" not in row for row in rows)

    def _kernel_part(self, contender: str, site: Path, file: Path, deadline: Deadline) -> Part:
        flags = ["--output", str(file), "--device", self._args.device]
        flags += ["--seconds", f"{deadline.left() * 0.6:.0f}"]
        if self._args.device == "cpu":
            flags += ["--miniature", "--seconds-each", "0.02", "--dtype", "float32"]
        return Part(
            name=contender,
            command=[sys.executable, str(HERE / "kernels.py"), contender, *flags],
            environment=environment(site),
        )

    def _was_cut_off(self) -> bool:
        ended = self.found["checks"] + self.found["benchmarks"]
        return any(part["status"] in ("timed out", "not begun") for part in ended)


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def parse_args() -> Namespace:
    parser = ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the reports")
    parser.add_argument("--bundle", type=Path, default=FOLDER, help="folder of the bundle")
    parser.add_argument("--deadline", type=float, default=525.0, help="seconds for everything")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "cpu"], help="cpu: a rehearsal"
    )
    parser.add_argument("--backends", nargs="*", help="backends to check; None: tokenmill's own")
    parser.add_argument("--engines", nargs="*", help="engines to time; None: all")
    parser.add_argument("--contenders", nargs="*", help="kernels to time; None: all")
    parser.add_argument(
        "--jobs", type=int, default=min(16, os.cpu_count() or 1), help="checks in parallel"
    )
    parser.add_argument("--select", help="checks to run, as in pytest's -k; None: all")
    args = parser.parse_args()
    defaults: Mapping[str, Any] = ON_GPU if args.device == "cuda" else ON_CPU
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def end_early(work: Path, status: int) -> Callable[[int, object], None]:
    """A signal handler that kills all parts and exits. The reports of finished parts remain."""

    def handle(number: int, frame: object) -> None:
        print(f"ended early by signal {number}: the reports have the finished parts", flush=True)
        kill_running()
        shutil.rmtree(work, ignore_errors=True)
        os._exit(status)

    return handle


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-check-") as folder:
        work = Path(folder)
        signal.signal(signal.SIGTERM, end_early(work, 128 + signal.SIGTERM))
        signal.signal(signal.SIGINT, end_early(work, 128 + signal.SIGINT))
        signal.signal(signal.SIGALRM, end_early(work, 1))
        signal.setitimer(signal.ITIMER_REAL, args.deadline + GRACE_SECONDS)
        sys.exit(Checkup(args).run(work))


if __name__ == "__main__":
    main()
