"""Twenty failures of the worker process in a row, with the real model and open requests."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .server_process import running_server
from .test_engine_restarts import FAULTS, NUM_FAILURES, NUM_STREAMS, PATIENCE, Clients, wait_for


def children_of(pid: int) -> list[int]:
    """The child processes of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for file in files for number in file.read_text().split()]


@pytest.mark.soak
def test_twenty_lost_workers_in_a_row_end_every_request_and_leave_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    told: dict[str, list[float]] = {}
    restarts: list[float] = []
    flags = ("--max-engine-restarts", "100", "--num-gpu-blocks-override", "2000")
    with running_server(tmp_path, *flags, "--distributed-executor-backend", "mp") as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            for number in range(NUM_FAILURES):
                clients = Clients(server.url, number)
                wait_for(lambda: server.load()["num_running"] == NUM_STREAMS)
                [engine] = children_of(server.process.pid)
                [worker] = children_of(engine)
                fault = FAULTS[number % len(FAULTS)]
                began = time.monotonic()
                os.kill(worker, fault)
                clients.join()
                assert [end for end, _ in clients.ends] == ["told"] * NUM_STREAMS
                seconds = max(at for _, at in clients.ends) - began
                told.setdefault(fault.name, []).append(seconds)
                wait_for(lambda: http.get("/ready").status_code == 200)
                restarts.append(time.monotonic() - began)
                assert not Path(f"/proc/{worker}").exists()
                body = {"prompt": f"after {number}", "max_tokens": 4}
                assert http.post("/v1/completions", json=body).status_code == 200
            [engine] = children_of(server.process.pid)
            [worker] = children_of(engine)
        os.kill(server.process.pid, 9)
        wait_for(lambda: not Path(f"/proc/{worker}").exists())
    for name, found in told.items():
        record_property(f"seconds until all clients had an answer, {name}", round(max(found), 3))
    record_property("seconds until ready, median", round(statistics.median(restarts), 1))
    record_property("failures", NUM_FAILURES)
