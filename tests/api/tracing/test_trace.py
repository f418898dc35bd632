"""The routes and the command that write a trace of a running server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from tests.api.serving import Served, SteeredExecutor, serve_engine, toy_engine
from tests.api.toy_process import toy_process
from tokenmill.api.cli import main
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.trace import Trace
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.processes.place import Place
from tokenmill.core.regions import Region, Regions

KEY = "sk-admin"
ADMIN = {"Authorization": f"Bearer {KEY}"}
NUM_TOKENS = 5


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The default: an engine in a process of its own."""
    with serve_engine(toy_process(), admin_key=KEY) as served:
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def complete(http: httpx.Client, name: str) -> str:
    body = {"prompt": "abc", "max_tokens": NUM_TOKENS, "ignore_eos": True}
    found: str = http.post("/v1/completions", json=body, headers={"X-Request-Id": name}).json()[
        "id"
    ]
    return found


def spans_in(trace: dict[str, Any], name: str) -> list[str]:
    """The names of the spans on the track of a request."""
    events = trace["traceEvents"]
    [track] = [
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"] == name
    ]
    return [e["name"] for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == track]


def test_a_profile_has_the_requests_between_start_and_stop(http: httpx.Client) -> None:
    complete(http, "before")
    time.sleep(0.01)
    assert http.post("/start_profile", headers=ADMIN).status_code == 200
    again = http.post("/start_profile", headers=ADMIN)
    assert (again.status_code, "/stop_profile" in again.text) == (409, True)
    name = complete(http, "within")
    answer = http.post("/stop_profile", headers=ADMIN)
    assert answer.headers["content-type"] == "application/json"
    trace = answer.json()
    assert trace["otherData"]["requests"] == 1 and trace["otherData"]["steps"] == NUM_TOKENS
    assert spans_in(trace, name) == ["waiting", "prompt", "decode"]
    tracks = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {"plan", "device", "commit", "engine 0: steps"} <= tracks
    measured = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert measured[:4] == ["plan", "prompt", "toy", "commit"]
    assert measured.count("toy") == NUM_TOKENS
    assert http.post("/stop_profile", headers=ADMIN).status_code == 409


def test_a_profile_can_be_stopped_again_if_no_engine_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = toy_engine()
    with serve_engine(engine, admin_key=KEY) as served, served.client() as http:
        assert http.post("/start_profile", headers=ADMIN).status_code == 200
        with monkeypatch.context() as patch:
            patch.setattr(engine, "trace", AsyncMock(return_value=()))
            assert http.post("/stop_profile", headers=ADMIN).status_code == 503
        assert http.post("/stop_profile", headers=ADMIN).status_code == 200


def test_a_profile_has_its_first_steps_even_if_the_engine_answers_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = toy_engine()
    answer = engine.running.trace

    async def late(since: float) -> tuple[Trace, ...]:
        await asyncio.sleep(0.2)  # much longer than the request takes
        return await answer(since)

    monkeypatch.setattr(engine.running, "trace", late)
    with serve_engine(engine, admin_key=KEY) as served, served.client() as http:
        assert http.post("/start_profile", headers=ADMIN).status_code == 200
        complete(http, "early")
        trace = http.post("/stop_profile", headers=ADMIN).json()
    assert trace["otherData"]["steps"] == NUM_TOKENS


def test_a_stopped_profile_does_not_end_a_longer_trace(http: httpx.Client) -> None:
    since = http.post("/debug/trace?seconds=600", headers=ADMIN).json()["since"]
    for path in ("/start_profile", "/stop_profile"):
        assert http.post(path, headers=ADMIN).status_code == 200
    complete(http, "afterwards")
    events = http.get(f"/debug/trace?since={since!r}", headers=ADMIN).json()["traceEvents"]
    assert [e["name"] for e in events].count("toy") == NUM_TOKENS
    assert http.post("/debug/trace?seconds=0.001", headers=ADMIN).status_code == 200


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "x", "1e9"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_wrong_number_of_seconds_is_refused(
    http: httpx.Client, method: str, seconds: str
) -> None:
    answer = http.request(method, f"/debug/trace?seconds={seconds}", headers=ADMIN)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "seconds"


@pytest.mark.parametrize("since", ["nan", "x", "1e12", "-1e6"])
def test_a_since_that_the_server_did_not_return_is_refused(http: httpx.Client, since: str) -> None:
    answer = http.get(f"/debug/trace?since={since}", headers=ADMIN)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "since"


def test_without_a_step_log_the_answer_says_so() -> None:
    engine = toy_engine(step_log_size=0)
    with serve_engine(engine, admin_key=KEY) as served, served.client() as http:
        for answer in (
            http.get("/debug/trace", headers=ADMIN),
            http.post("/debug/trace", headers=ADMIN),
            http.post("/start_profile", headers=ADMIN),
        ):
            assert answer.status_code == 404 and "--step-log-size 0" in answer.text


def test_every_replica_has_tracks_of_its_own() -> None:
    engine = toy_process(places=(Place(), Place()))
    with serve_engine(engine, admin_key=KEY) as served, served.client() as http:
        trace = http.get("/debug/trace", headers=ADMIN).json()
    names = {e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert (names["engine 0: steps"], names["engine 1: steps"]) == (1, 3)
    assert (names["engine 0: requests"], names["engine 1: requests"]) == (2, 4)


class Workers(SteeredExecutor):
    """Two workers compute each step. The second one is on a machine whose clock is far behind."""

    def run(self, plan: StepPlan) -> StepResult:
        began = time.monotonic()
        result = super().run(plan)
        ended = time.monotonic()
        own, late = [Region("own", 0, began, ended)], [Region("late", 0, began - 1e6, ended - 1e6)]
        return replace(
            result,
            rank_times=((began, ended), (began - 1e6, ended - 1e6)),
            regions=(Regions.of(own), Regions.of(late)),
        )


def test_every_worker_has_a_track_in_the_time_of_its_step() -> None:
    engine = toy_engine(Workers(step_seconds=0.002))
    with serve_engine(engine, admin_key=KEY) as served, served.client() as http:
        complete(http, "computed")
        events = http.get("/debug/trace", headers=ADMIN).json()["traceEvents"]
    names = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}

    def ends(name: str, region: str) -> list[int]:
        slices = [e for e in events if (e["ph"], e["pid"], e["tid"]) == ("X", 1, names[name])]
        own = [e for e in slices if e["name"] != region]
        inner = [e for e in slices if e["name"] == region]
        for one, whole in zip(inner, own, strict=True):
            assert whole["ts"] <= one["ts"] and one["dur"] >= whole["dur"] - 2
            assert one["ts"] + one["dur"] <= whole["ts"] + whole["dur"]
        assert all(e["dur"] >= 2000 for e in own)
        return [e["ts"] + e["dur"] for e in own]

    commits = [e["ts"] for e in events if e["name"] == "commit"]
    for found in (ends("worker 0", "own"), ends("worker 1", "late")):
        assert len(found) == len(commits) == NUM_TOKENS
        assert all(end <= commit + 1 for end, commit in zip(found, commits, strict=True))
    assert ends("worker 0", "own")[0] >= 2000


class SlowPlugin:
    """A wrapper that thinks before each step."""

    @hookimpl(wrapper=True)
    def schedule(self, step: Any) -> Iterator[None]:
        time.sleep(0.005)
        return (yield)


def test_a_slow_hook_is_counted_in_the_steps_that_it_delays() -> None:
    engine = toy_engine(extra=[SlowPlugin()])
    with serve_engine(engine, admin_key=KEY) as served, served.client() as http:
        complete(http, "slowed")
        trace = http.get("/debug/trace", headers=ADMIN).json()
    counted = [e["args"] for e in trace["traceEvents"] if e["name"].startswith("hooks of plugins")]
    slow = [args["SlowPlugin (schedule)"] for args in counted if "SlowPlugin (schedule)" in args]
    assert len(slow) >= NUM_TOKENS - 1 and min(slow) >= 5


# The command


def trace(served: Served, *words: str) -> int:
    return main(["trace", *words, "--url", served.url, "--admin-key", KEY])


def test_the_command_writes_the_next_seconds_or_the_past_ones(
    served: Served, http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, path = complete(http, "written"), tmp_path / "trace.json"
    assert trace(served, "--past", "--seconds", "600", "-o", str(path)) == 0
    assert name in path.read_text() and "prompt" in spans_in(json.loads(path.read_text()), name)
    assert f"{path}: " in (out := capsys.readouterr().out) and "ui.perfetto.dev" in out
    assert trace(served, "--seconds", "0.05", "-o", str(path)) == 0
    assert "0 steps and 0 requests" in capsys.readouterr().out


def test_the_command_writes_to_standard_output(
    served: Served, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert trace(served, "--seconds", "0.05", "-o", "-") == 0
    assert json.loads(capsysbinary.readouterr().out)["otherData"]["steps"] == 0


def test_the_command_says_what_is_wrong_before_it_waits(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    hour = ["trace", "--seconds", "3600", "--url", served.url]
    assert main([*hour, "--admin-key", "sk-wrong", "-o", str(tmp_path / "a.json")]) == 1
    assert main([*hour, "--admin-key", KEY, "-o", str(tmp_path / "nowhere" / "a.json")]) == 1
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_is_wrong(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trace(served, "--seconds", "0") == 1
    assert "--seconds must be above 0" in capsys.readouterr().err
    assert trace(served, "--past", "-o", str(tmp_path / "nowhere" / "trace.json")) == 1
    assert "nowhere/trace.json cannot be written: No such file" in capsys.readouterr().err
    assert main(["trace", "--past", "--url", served.url, "--admin-key", "sk-wrong"]) == 1
    assert "--admin-key" in capsys.readouterr().err
    with serve_engine(toy_engine()) as open_server:
        assert trace(open_server, "--past") == 1
    assert "start it with --admin-key" in capsys.readouterr().err
