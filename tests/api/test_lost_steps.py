"""The last steps of an engine that crashed or hung are in a file, which the log names."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.errors import EngineStoppedError
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.supervised import lost_steps
from tokenmill.core.supervised.lost_steps import MAX_FILES

from ..core.shell.test_engine_shell import in_event_loop
from .toy_process import toy_process, until

FEW = SamplingParams(max_tokens=3, ignore_eos=True)


async def lose(caplog: pytest.LogCaptureFixture, fault: str, **options: Any) -> dict[str, Any]:
    """Compute a request, and then one that ends the engine. Returns the fields of the event."""
    async with toy_process(stall_timeout=0.5, **options) as engine:
        async for _ in engine.generate([1, 2], FEW, request_id="before"):
            pass
        with pytest.raises(EngineStoppedError):
            async for _ in engine.generate([ord(fault), 2, 3], FEW, request_id="guilty"):
                pass
        await until(lambda: [r for r in caplog.records if r.msg == "engine_lost"])
        [found] = [vars(r) for r in caplog.records if r.msg == "engine_lost"]
        return found


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("fault", ["C", "S", "H", "K"])
@in_event_loop
async def test_a_crash_and_a_hang_leave_a_file_whose_last_step_is_the_cause(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    event = await lose(caplog, fault, lost_steps=tmp_path / "lost")
    head, *steps = read(event["last_steps"])
    assert (head["event"], head["reason"]) == ("engine_lost", event["reason"])
    assert (head["pid"], head["num_requests"]) == (event["pid"], 1)
    assert head["in_work"] == [{"request": "guilty", "num_tokens": 3}]
    assert [step["state"] for step in steps] == ["finished"] * 3 + ["not finished"]
    assert [step["requests"] for step in steps] == [["before"]] * 3 + [["guilty"]]
    assert [step["num_prompt_tokens"] for step in steps] == [2, 0, 0, 3]
    assert all(step["device_ms"] >= 5 for step in steps[:3]) and steps[3]["open_ms"] > 0
    assert [step["time"] for step in steps] == sorted(step["time"] for step in steps)
    assert steps[3]["time"] < head["time"]


@in_event_loop
async def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    event = await lose(caplog, "C", lost_steps=tmp_path / "file" / "lost")
    assert "file/lost cannot be written" in event["no_last_steps"] and "last_steps" not in event


@in_event_loop
async def test_without_a_step_log_or_a_folder_there_is_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    event = await lose(caplog, "C", lost_steps=tmp_path, step_log_size=0)
    assert event["no_last_steps"] == "--step-log-size is 0" and not names_in(tmp_path)
    caplog.clear()
    event = await lose(caplog, "C")
    assert "XDG_CACHE_HOME" in event["no_last_steps"]


@in_event_loop
async def test_a_server_that_ends_while_a_disk_hangs_logs_the_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over, begun = threading.Event(), threading.Event()

    def hang(folder: Path, lost: object) -> Path:
        begun.set()
        is_over.wait()
        return folder

    monkeypatch.setattr(lost_steps, "_write", hang)
    monkeypatch.setattr(lost_steps, "WRITE_SECONDS", 600.0)
    try:
        async with toy_process(lost_steps=tmp_path) as engine:
            with pytest.raises(EngineStoppedError):
                async for _ in engine.generate([ord("C"), 2, 3], FEW):
                    pass
            await until(begun.is_set)
            assert not [r for r in caplog.records if r.msg == "engine_lost"]
    finally:
        is_over.set()
    [event] = [vars(r) for r in caplog.records if r.msg == "engine_lost"]
    assert event["no_last_steps"] == "the server ended first"


@in_event_loop
async def test_only_the_last_files_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_FILES + 2):
        (tmp_path / f"20200101T0000{number:02}-engine0-pid1.jsonl").touch()
    (tmp_path / "20200101T000000-engine0-pid1.jsonl.partial").touch()
    (tmp_path / "notes.txt").touch()
    event = await lose(caplog, "C", lost_steps=tmp_path)
    names = names_in(tmp_path)
    assert len(names) == MAX_FILES + 1 and names[0] == "20200101T000003-engine0-pid1.jsonl"
    assert names[-2:] == [Path(event["last_steps"]).name, "notes.txt"]
