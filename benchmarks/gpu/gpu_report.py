"""Writes the report of a check on a GPU, as Markdown, from the results of check.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernel_report import kernels, targets

Lines = Iterable[str]
MOST_FAILURES = 12
"""Maximum number of failures to list per part; the JSON file has all."""


def markdown(found: Mapping[str, Any]) -> str:
    """The report of all results so far."""
    lines = [
        "# Check on a GPU",
        "",
        *_verdict(found),
        "",
        *_machine(found),
        "",
        *_checks(found),
        "",
        *_engines(found),
        "",
        *targets(found),
        "",
        *kernels(found),
        "",
        *_parts(found),
    ]
    return "\n".join(lines) + "\n"


def count_outcomes(tests: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """The numbers of passed, failed and skipped tests."""
    return Counter(test["outcome"] for test in tests)


def _verdict(found: Mapping[str, Any]) -> Lines:
    if found["rehearsal"]:
        yield "**A rehearsal on the CPU: no GPU was used, and the times are meaningless.**"
        yield ""
    state = "complete" if found["is_complete"] else "CUT OFF: missing parts were not run"
    failed = [check["name"] for check in found["checks"] if not check["is_ok"]]
    outcome = f"**FAILED: {', '.join(failed)}**" if failed else "all checks that ran have passed"
    yield f"{found['date']}, commit {found['commit']}, {found['seconds']} s, {state}; {outcome}."


def _machine(found: Mapping[str, Any]) -> Lines:
    machine = found["machine"]
    yield "## Machine"
    yield ""
    for name, value in machine.items():
        if name == "packages":
            value = ", ".join(f"{package} {v}" for package, v in value.items() if v)
        yield f"- {name}: {value}"
    yield from (f"- {line}" for line in found["installed"])


def _checks(found: Mapping[str, Any]) -> Lines:
    yield "## Checks against float64 and transformers"
    yield ""
    yield "Errors are the largest absolute differences from float64. Results are of the order of 1."
    yield ""
    yield "| backend | part | passed | failed | skipped | largest error | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for check in found["checks"]:
        count = count_outcomes(check["tests"])
        yield (
            f"| {check['backend']} | {check['part']}{_mark(check, count)} "
            f"| {count['passed']} | {count['failed']} | {count['skipped']} "
            f"| {_largest(check['tests'], 'max_error')} | {check['seconds']} |"
        )
    for check in found["checks"]:
        yield from _failures(check)
    yield from _skips(found["checks"])


def _engines(found: Mapping[str, Any]) -> Lines:
    yield "## Decoding by the whole engine"
    yield ""
    yield "Milliseconds per step (benchmarks/gpu/decoding.py)."
    yield ""
    rows: dict[tuple[str, str], dict[int, float]] = {}
    for line in found["engines"]:
        times = rows.setdefault((line["contender"], line["mode"]), {})
        times[line["num_requests"]] = line["milliseconds"]
    counts = sorted({line["num_requests"] for line in found["engines"]})
    yield "| attention | mode | " + " | ".join(f"{count} requests" for count in counts) + " |"
    yield "|---|---|" + "---|" * len(counts)
    for (contender, mode), times in rows.items():
        cells = (f"{times[count]:.2f}" if count in times else "" for count in counts)
        yield f"| {contender} | {mode} | {' | '.join(cells)} |"


def _mark(check: Mapping[str, Any], count: Counter[str]) -> str:
    if not check["is_ok"]:
        return " **FAILED**"
    return "" if count["passed"] else " (nothing could run, see below)"


def _largest(tests: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [test[name] for test in tests if name in test]
    return f"{max(values):.1e}" if values else ""


def _failures(check: Mapping[str, Any]) -> Lines:
    failed = [test for test in check["tests"] if test["outcome"] == "failed"]
    if check["is_ok"]:
        return
    yield ""
    yield f"### {check['name']}: {check['status']}"
    yield ""
    for test in failed[:MOST_FAILURES]:
        first, *_ = test["message"].splitlines() or [""]
        yield f"- `{test['test']}`: {first[:300]}"
    if len(failed) > MOST_FAILURES:
        yield f"- and {len(failed) - MOST_FAILURES} more, in the JSON file"
    if not failed:
        yield from ("```", check["tail"][-1500:], "```")


def _skips(checks: Sequence[Mapping[str, Any]]) -> Lines:
    """Each reason for skipped tests once, with the number of tests."""
    reasons: Counter[tuple[str, str]] = Counter()
    for check in checks:
        for test in check["tests"]:
            if test["outcome"] == "skipped":
                reasons[check["backend"], test["message"][:400]] += 1
    if reasons:
        yield ""
        yield "Skipped tests:"
        yield ""
    for (backend, reason), count in reasons.most_common(60):
        yield f"- {backend}, {count} tests: {reason}"


def _parts(found: Mapping[str, Any]) -> Lines:
    """The benchmarks that failed."""
    bad = [part for part in found["benchmarks"] if part["status"] != "ok"]
    if not bad:
        return
    yield "## Benchmarks that failed"
    for part in bad:
        yield from ("", f"### {part['name']}: {part['status']}", "")
        yield from ("```", part["tail"][-1500:], "```")
