"""The report of `tokenmill tune`."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ....core.settings.declaration import flag
from ..printing import new_table, print_json, print_table

if TYPE_CHECKING:
    from ....tuning.capacity import Capacity
    from ....tuning.limits import Limits
    from ....tuning.reasons import Reasons
    from ....tuning.rounds import Round, Verdict
    from ....tuning.space import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    model: str
    limits: Limits
    num_requests: int
    num_trials: int
    num_settings: int
    """Number of all combinations."""
    num_runs: int
    given: Capacity
    tuned: Capacity
    settings: Settings
    """The best settings that the simulation found, without those that do not matter."""
    base: Settings
    """The options on the command line."""
    reasons: Reasons | None = None
    finalists: Mapping[str, Settings] = field(default_factory=dict)
    """The settings that were measured, by name; the given ones first."""
    rounds: Sequence[Round] = ()

    @property
    def winner(self) -> str:
        """The measured settings with the highest median, besides the given ones."""
        _, *others = self.finalists
        return max(others, key=lambda name: statistics.median(self._goodputs(name)))

    @property
    def verdict(self) -> Verdict | None:
        """The result of the real measurements; None without them."""
        from ....tuning.rounds import Verdict

        if not self.rounds:
            return None
        given = next(iter(self.finalists))
        return Verdict(given=self._goodputs(given), tuned=self._goodputs(self.winner))

    @property
    def recommended(self) -> Settings:
        """The best settings, unless the measurements could not tell them from the given ones."""
        if (verdict := self.verdict) is None:
            return self.settings
        return self.finalists[self.winner] if verdict.is_better else {}

    def _goodputs(self, name: str) -> list[float]:
        return [one.goodput for one in self.rounds if one.candidate == name]


def command_line(base: Settings, settings: Settings) -> str:
    """The command that serves with these settings, for a shell."""
    words = ["tokenmill", "serve"]
    for key, value in {**base, **settings}.items():
        if isinstance(value, bool):
            words.append(flag(key) if value else flag(f"no_{key}"))
        elif key == "model":
            words.insert(2, str(value))
        else:
            plain = value if isinstance(value, str | int | float) else json.dumps(value)
            words += [flag(key), str(plain)]
    return shlex.join(words)


def write_report(path: Path, report: Report) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_fields(report)), indent=2) + b"\n")


def print_report(report: Report, folder: Path, *, as_json: bool) -> None:
    """Print JSON, or tables and the command line."""
    if as_json:
        print_json(_fields(report))
        return
    print(
        f"{report.model}: {report.num_requests} requests, limits: {report.limits}; "
        f"{report.num_trials} of {report.num_settings} settings simulated in "
        f"{report.num_runs} runs"
    )
    if not report.tuned.rate:
        print("none: no setting keeps these limits at any request rate")
        return
    print_table(_capacities(report))
    if report.reasons is not None:
        _print_reasons(report.reasons, report.settings)
    if (verdict := report.verdict) is not None:
        print_table(_rounds(report))
        if verdict.is_better:
            gain = "" if verdict.gain is None else f" by {verdict.gain:.0%}"
            print(f"{report.winner!r} is better than 'given' in every round{gain}")
        elif not any(verdict.tuned):
            print("the real servers kept the limits in no round: is the machine busy?")
        else:
            print("not distinguishable from the given settings on this machine: keep those")
    if report.recommended:
        print(f"\n{command_line(report.base, report.recommended)}")
        print(f"(also as a file: tokenmill serve --config {folder / 'serve.yaml'})")
    elif not report.settings:
        print("no setting is better than the given ones")


def _capacities(report: Report) -> Any:
    columns = ("goodput", "rate", "TTFT p99", "ITL p99", "E2E p99")
    table = new_table("simulated", *columns, right=columns)
    for name, found in (("given", report.given), ("tuned", report.tuned)):
        outcome = found.outcome
        if outcome is None:
            table.add_row(name, "none")
            continue
        latencies = (outcome.p99_ttft_ms, outcome.p99_itl_ms, outcome.p99_e2el_ms)
        table.add_row(
            name,
            f"{found.goodput:.3f} req/s",
            f"{found.rate:.3f}/s",
            *("-" if value is None else f"{value:.0f} ms" for value in latencies),
        )
    return table


def _print_reasons(reasons: Reasons, settings: Settings) -> None:
    for key, loss in sorted(reasons.losses.items(), key=lambda pair: -pair[1]):
        print(f"{flag(key)} {settings[key]}: without it {-loss:+.1%} goodput")
    for name, goodput in reasons.without_limit.items():
        print(f"without the limit of {name}: {goodput:.3f} req/s")


def _rounds(report: Report) -> Any:
    columns = ("goodput", "lowest", "highest", "TTFT p99", "ITL p99")
    table = new_table("measured", *columns, right=columns)
    by_name: dict[str, list[Round]] = {}
    for one in report.rounds:
        by_name.setdefault(one.candidate, []).append(one)
    for name, rounds in by_name.items():
        if error := next((one.error for one in rounds if one.error), ""):
            table.add_row(name, error)
            continue
        goodputs = [one.goodput for one in rounds]
        table.add_row(
            name,
            f"{statistics.median(goodputs):.3f} req/s",
            f"{min(goodputs):.3f}",
            f"{max(goodputs):.3f}",
            f"{statistics.median(one.p99_ttft_ms for one in rounds):.0f} ms",
            f"{statistics.median(one.p99_itl_ms for one in rounds):.0f} ms",
        )
    return table


def _fields(report: Report) -> Mapping[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(report, enc_hook=lambda value: dict(value))
    verdict = report.verdict
    fields["limits"] = dict(report.limits.given())
    fields["recommended"] = dict(report.recommended)
    fields["command"] = command_line(report.base, report.recommended)
    fields["gain"] = None if verdict is None else verdict.gain
    fields["is_better"] = None if verdict is None else verdict.is_better
    return fields
