"""Writes the last steps of a lost engine into a file, from what it showed to this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..processes.watching.last_steps import FinishedStep, PlannedStep
from .link import EngineLink, EngineSetup

MAX_FILES = 10
"""Number of files that are kept, the last ones."""
MAX_REQUESTS = 64
"""Maximum number of requests in the first line."""
WRITE_SECONDS = 2.0
"""Time limit to write a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEngine:
    """The facts about an engine at its end."""

    engine: int
    """Index of the replica."""
    pid: int
    reason: str
    now: float
    """A time of the monotonic clock."""
    time: datetime
    """The same time."""
    in_work: Sequence[tuple[str, int]]
    """The requests of the steps that were not finished, each with the number of its tokens that are
    computed when they end."""
    num_open: int
    steps: Sequence[tuple[PlannedStep, FinishedStep | None]]


async def save_last_steps(setup: EngineSetup, link: EngineLink, reason: str) -> dict[str, str]:
    """Write the last steps of a lost engine. Returns fields of its log event: the file, or why
    there is none."""
    folder, shown = setup.lost_steps, link.board.last_steps
    steps = [] if shown is None else shown.read()
    if folder is None:
        return {"no_last_steps": "there is no folder for them: set XDG_CACHE_HOME"}
    if not steps:
        has_log = setup.config.step_log_size
        return {"no_last_steps": "it made no step" if has_log else "--step-log-size is 0"}
    lost = LostEngine(
        engine=setup.replica.index,
        pid=link.pid,
        reason=reason,
        now=time.monotonic(),
        time=datetime.now(UTC),
        in_work=link.in_work,
        num_open=len(link.at_end),
        steps=steps,
    )
    try:
        # A disk that hangs must delay neither the next engine nor the end of the server.
        written: Future[Path] = Future()
        threading.Thread(target=_fulfil, args=(written, folder, lost), daemon=True).start()
        path = await asyncio.wait_for(asyncio.wrap_future(written), WRITE_SECONDS)
        return {"last_steps": str(path)}
    except TimeoutError:
        return {"no_last_steps": f"{folder} was not written within {WRITE_SECONDS:g} s"}
    except OSError as error:
        return {"no_last_steps": f"{folder} cannot be written: {error.strerror or error}"}
    except (ValueError, OverflowError) as error:  # a time that is none
        return {"no_last_steps": f"the crash has damaged them: {error}"}


def _fulfil(written: Future[Path], folder: Path, lost: LostEngine) -> None:
    written.set_running_or_notify_cancel()  # from here on, nobody can cancel it
    try:
        written.set_result(_write(folder, lost))
    except BaseException as error:
        written.set_exception(error)


def _write(folder: Path, lost: LostEngine) -> Path:
    """Write a file with a JSON object per line: the engine, and then its steps, the oldest first.
    Only the last files stay; one that a full disk has cut off counts. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"{lost.time:%Y%m%dT%H%M%S.%f}-engine{lost.engine}-pid{lost.pid}.jsonl"
    path, partial = folder / name, folder / f"{name}.partial"
    partial.write_bytes(msgspec.json.Encoder().encode_lines(_lines(lost)))
    partial.replace(path)
    for old in sorted(folder.glob("*.jsonl*"))[:-MAX_FILES]:
        old.unlink(missing_ok=True)
    return path


def _lines(lost: LostEngine) -> Iterator[dict[str, Any]]:
    yield {
        "event": "engine_lost",
        "time": lost.time,
        "engine": lost.engine,
        "pid": lost.pid,
        "reason": lost.reason,
        "num_requests": lost.num_open,
        "in_work": [
            {"request": request_id, "num_tokens": count}
            for request_id, count in lost.in_work[:MAX_REQUESTS]
        ],
    }
    for step, times in lost.steps:
        yield _step(lost, step, times)


def _step(lost: LostEngine, step: PlannedStep, times: FinishedStep | None) -> dict[str, Any]:
    planned_at = datetime.fromtimestamp(lost.time.timestamp() - (lost.now - step.planned_at), UTC)
    found: dict[str, Any] = {"step": step.step_id, "time": planned_at}
    if times is None:
        found |= {"state": "not finished", "open_ms": _ms(lost.now - step.planned_at)}
    elif times.raised:
        found |= {"state": "raised", "open_ms": _ms(times.committed_at - step.planned_at)}
    else:
        found |= {
            "state": "finished",
            "plan_ms": _ms(times.plan_seconds),
            "device_ms": _ms(times.device_to - times.device_from),
            "commit_ms": _ms(times.commit_seconds),
        }
    facts = msgspec.structs.asdict(step)
    del facts["step_id"], facts["planned_at"]
    return found | facts


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
