"""The engine in a process of its own: what clients see when it crashes or hangs."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tokenmill.core.log import event_fields
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.supervised import client

from ..core.shell.test_engine_shell import in_event_loop
from .serving import PATIENCE, Served, serve_engine
from .test_errors import check_error
from .test_operations import samples
from .toy_process import LOAD_SECONDS, STOP_HANGS, toy_process

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 4}
LONG: dict[str, Any] = {"max_tokens": 800, "ignore_eos": True}


@pytest.fixture
def served() -> Iterator[Served]:
    with serve_engine(toy_process(stall_timeout=1.0)) as served:
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def wait_until_ready(served: Served) -> None:
    with served.client() as http:
        end = time.monotonic() + PATIENCE
        while http.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.02)


def engine_pid(served: Served) -> int:
    return int(served.engine.running.replicas.supervisors[0].link.pid)


_NUMBERS = itertools.count()
"""Prompts differ: a request that was there in two crashes is refused."""


class Neighbours:
    """Requests that are being answered when the engine fails: streams, and whole answers."""

    def __init__(self, served: Served, number: int = 3) -> None:
        self.answers: list[httpx.Response] = []
        self.ends: list[list[str]] = []
        self._served = served
        self._threads = [
            threading.Thread(target=work, args=(f"{next(_NUMBERS)} says",))
            for _ in range(number)
            for work in (self._stream, self._ask)
        ]
        for thread in self._threads:
            thread.start()
        served.wait_until(lambda load: load["num_running"] == 2 * number)

    def _ask(self, prompt: str) -> None:
        with self._served.client() as http:
            self.answers.append(http.post("/v1/completions", json=LONG | {"prompt": prompt}))

    def _stream(self, prompt: str) -> None:
        body = LONG | {"prompt": prompt + "!", "stream": True}
        with self._served.client() as http, http.stream("POST", "/v1/completions", json=body) as r:
            self.ends.append([line for line in r.iter_lines() if line][-2:])

    def check_all_were_told(self) -> None:
        """Each stream ended with an error event and [DONE], each whole answer is a 503."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a request hangs"
        assert len(self.ends) == len(self.answers) == len(self._threads) // 2
        for error, done in self.ends:
            assert '"code":"stopped"' in error
            assert done == "data: [DONE]"
        for answer in self.answers:
            assert check_error(answer, 503)["code"] == "stopped"
            assert int(answer.headers["retry-after"]) >= 1


FAULTS = {
    "killed on the device": {"prompt": "K"},
    "native crash on the device": {"prompt": "C"},
    "native crash in a plugin": {"prompt": "abc", "user": "crash"},
    "a plugin leaves": {"prompt": "abc", "user": "leave"},
    "a plugin loops": {"prompt": "abc", "user": "loop"},
    "stopped": {"prompt": "S"},
    "the device hangs": {"prompt": "H"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_engine_ends_all_requests_and_another_one_serves(
    fault: str, served: Served, http: httpx.Client
) -> None:
    tokens = samples(http)["tokenmill:generation_tokens_total"]
    pid = engine_pid(served)
    neighbours = Neighbours(served)
    body = ASK | FAULTS[fault] | {"seed": len(fault)}
    check_error(http.post("/v1/completions", json=body), 503)
    neighbours.check_all_were_told()
    wait_until_ready(served)
    assert not os.path.exists(f"/proc/{pid}"), "the failed engine is gone"
    assert http.post("/v1/completions", json=ASK).status_code == 200
    served.wait_idle()
    assert samples(http)["tokenmill:generation_tokens_total"] > tokens
    assert samples(http)["tokenmill:engine_restarts_total"] > 0
    assert samples(http)["tokenmill:engine_lost_requests_total"] > 0


def test_a_lost_device_ends_its_engine_and_another_one_serves(http: httpx.Client) -> None:
    error = check_error(http.post("/v1/completions", json=ASK | {"prompt": "E"}), 503)
    assert error["code"] == "stopped" and "it is started again" in error["message"]
    end = time.monotonic() + PATIENCE
    while http.post("/v1/completions", json=ASK).status_code != 200:
        assert time.monotonic() < end


def test_the_limits_of_a_key_outlive_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[a]\nkey = "k"\nrequests_per_minute = 1\n')
    file.chmod(0o600)
    with (
        serve_engine(toy_process(stall_timeout=1.0), api_key_file=file) as served,
        served.client(headers={"Authorization": "Bearer k"}) as http,
    ):
        assert http.post("/v1/completions", json=ASK).status_code == 200
        os.kill(engine_pid(served), signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while http.get("/ready").status_code == 200:
            assert time.monotonic() < end
        wait_until_ready(served)
        check_error(http.post("/v1/completions", json=ASK), 429)


def test_while_the_engine_restarts_the_server_answers_all_but_requests(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOAD_SECONDS, "2")
    os.kill(engine_pid(served), signal.SIGKILL)
    end = time.monotonic() + PATIENCE
    while http.get("/ready").status_code == 200:
        assert time.monotonic() < end
    for path in ("/ready", "/health"):
        assert check_error(http.get(path), 503)["code"] == "restarting"
    assert http.get("/load").json()["is_restarting"]
    assert check_error(http.post("/v1/completions", json=ASK), 503)["code"] == "stopped"
    assert http.get("/v1/models").status_code == 200
    assert http.post("/tokenize", json={"prompt": "abc"}).json()["count"] == 3
    assert http.get("/plugins").json()["plugins"]
    metrics = samples(http)
    assert metrics["tokenmill:engine_up"] == 0
    assert "tokenmill:generation_tokens_total" in metrics
    assert "tokenmill:num_requests_running" not in metrics


@pytest.mark.parametrize("prompt", ["Crash", "Eject the device"])
def test_a_request_that_was_there_in_two_crashes_is_refused(
    prompt: str, served: Served, http: httpx.Client
) -> None:
    poison = ASK | {"prompt": prompt}
    for _ in range(2):
        wait_until_ready(served)
        check_error(http.post("/v1/completions", json=poison), 503)
    wait_until_ready(served)
    pid = engine_pid(served)
    assert "crashed" in check_error(http.post("/v1/completions", json=poison), 400)["message"]
    streamed = http.post("/v1/completions", json=poison | {"stream": True, "max_tokens": 5})
    check_error(streamed, 400)
    assert http.post("/v1/completions", json=ASK).status_code == 200
    assert engine_pid(served) == pid


def test_a_request_of_two_workers_that_someone_killed_is_taken_again(
    served: Served, http: httpx.Client
) -> None:
    for _ in range(3):
        wait_until_ready(served)
        check_error(http.post("/v1/completions", json=ASK | {"prompt": "Outside"}), 503)


def test_after_too_many_restarts_it_gives_up_and_says_why() -> None:
    with serve_engine(toy_process(max_restarts=1)) as served, served.client() as http:
        for prompt in ("K1", "K2"):
            check_error(http.post("/v1/completions", json=ASK | {"prompt": prompt}), 503)
            if prompt == "K1":
                wait_until_ready(served)
        served.run(served.engine.running.replicas.wait_given_up())
        assert "SIGKILL" in served.engine.running.replicas.failure
        assert check_error(http.get("/health"), 503)["code"] == "dead"
        assert "1 restarts" in check_error(http.post("/v1/completions", json=ASK), 503)["message"]


def test_a_client_that_leaves_frees_its_blocks(served: Served, http: httpx.Client) -> None:
    body = LONG | {"prompt": "tell me", "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        served.wait_until(lambda load: load["num_running"] == 1)
    served.wait_idle()


def test_a_drain_ends_what_is_left_and_closing_ends_the_process() -> None:
    with serve_engine(toy_process()) as served:
        pid = engine_pid(served)
        neighbours = Neighbours(served, 1)
        served.run(served.engine.drain(0.05))
        neighbours.check_all_were_told()
    assert not os.path.exists(f"/proc/{pid}")


def test_a_plugin_that_hangs_at_the_end_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(STOP_HANGS, "1")
    monkeypatch.setattr(client, "CLOSING_SECONDS", 0.5)
    with serve_engine(toy_process()):
        pass
    [killed] = [one for one in caplog.records if one.msg == "engine_killed"]
    assert event_fields(killed)["reason"].startswith("it did not stop within 0.5 s in ")
    assert "hook 'on_stopping'" in event_fields(killed)["reason"]


@in_event_loop
async def test_the_garbage_collector_does_not_look_at_what_stays_after_the_start() -> None:
    """With torch loaded it takes 110 ms of CPU time, which also look like those of a slow hook."""
    async with toy_process() as engine:
        await engine.submit([1, 2], SamplingParams(max_tokens=2), user="count objects")
