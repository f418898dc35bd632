"""Twenty failures of the engine process in a row, with the real model and open requests."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .server_process import RunningServer, running_server

NUM_FAILURES = 20
NUM_STREAMS = 8
FAULTS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL)
STALL_SECONDS = 2.0
PATIENCE = 120.0


def engine_of(server: RunningServer) -> list[int]:
    pid = server.process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def wait_for(is_reached: Callable[[], bool]) -> float:
    """Seconds until it is reached."""
    began = time.monotonic()
    while not is_reached():
        assert time.monotonic() < began + PATIENCE
        time.sleep(0.05)
    return time.monotonic() - began


class Clients:
    """Streams and whole answers in equal numbers. `ends`: what each saw last, and when."""

    def __init__(self, url: str, number: int) -> None:
        self.ends: list[tuple[str, float]] = []
        self._url = f"{url}/v1/completions"
        self._threads = [
            threading.Thread(target=self._ask, args=(f"story {number}, part {i}", i % 2 == 0))
            for i in range(NUM_STREAMS)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, prompt: str, is_streamed: bool) -> None:
        body = {"prompt": prompt, "max_tokens": 2000, "ignore_eos": True, "stream": is_streamed}
        answer = httpx.post(self._url, json=body, timeout=PATIENCE)
        told = answer.text.strip().endswith("data: [DONE]") and '"code":"stopped"' in answer.text
        status = "told" if (told if is_streamed else answer.status_code == 503) else answer.text
        self.ends.append((status, time.monotonic()))

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a request hangs"


@pytest.mark.soak
def test_twenty_failures_in_a_row_end_every_request_and_leave_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    told: dict[str, list[float]] = {}
    restarts: list[float] = []
    flags = ("--max-engine-restarts", "100", "--stall-timeout", str(STALL_SECONDS))
    with running_server(tmp_path, *flags, "--num-gpu-blocks-override", "2000") as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            for number in range(NUM_FAILURES):
                clients = Clients(server.url, number)
                wait_for(lambda: server.load()["num_running"] == NUM_STREAMS)
                [engine] = engine_of(server)
                fault = FAULTS[number % len(FAULTS)]
                began = time.monotonic()
                os.kill(engine, fault)
                clients.join()
                assert [end for end, _ in clients.ends] == ["told"] * NUM_STREAMS
                seconds = max(at for _, at in clients.ends) - began
                told.setdefault(fault.name, []).append(seconds)
                wait_for(lambda: http.get("/ready").status_code == 200)
                restarts.append(time.monotonic() - began)
                assert engine not in engine_of(server) and len(engine_of(server)) == 1
                body = {"prompt": f"after {number}", "max_tokens": 4}
                assert http.post("/v1/completions", json=body).status_code == 200
            assert server.wait_until_empty()["kv_cache_usage"] == 0
            assert f"engine_restarts_total {NUM_FAILURES}.0" in http.get("/metrics").text
        [engine] = engine_of(server)
    assert not Path(f"/proc/{engine}").exists()
    for name, found in told.items():
        record_property(f"seconds until all clients had an answer, {name}", round(max(found), 3))
    record_property("seconds until ready, median", round(statistics.median(restarts), 1))
    record_property("failures", NUM_FAILURES)
