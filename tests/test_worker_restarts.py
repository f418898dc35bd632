"""Twenty failures of a worker in a row, with the real model and open requests."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import psutil
import pytest

from tokenmill.backends.execution.workers.link import TARGET

from .server_process import RunningServer, running_server
from .test_engine_restarts import FAULTS, NUM_FAILURES, NUM_STREAMS, PATIENCE, Clients, wait_for

Record = Callable[[str, object], None]


def children_of(pid: int) -> list[int]:
    """The child processes of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for file in files for number in file.read_text().split()]


def ranks_of(pid: int) -> list[int]:
    """The worker processes of an engine in a process, by rank. An engine may have other child
    processes, such as one that compiles grammars."""
    return [one for one in children_of(pid) if TARGET in command_of(one)]


def command_of(pid: int) -> list[str]:
    """The command line of a process. Empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def workers_of(server: RunningServer) -> list[int]:
    """The worker processes of a server, by rank."""
    [engine] = children_of(server.process.pid)
    return ranks_of(engine)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_lost_workers_in_a_row_end_every_request_and_leave_nothing(
    tmp_path: Path, record_property: Record
) -> None:
    lose_workers(tmp_path, record_property, "--distributed-executor-backend", "mp")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_lost_stages_in_a_row_end_every_request_and_leave_nothing(
    tmp_path: Path, record_property: Record
) -> None:
    lose_workers(tmp_path, record_property, "--pipeline-parallel-size", "2")


def lose_workers(
    folder: Path,
    record: Record,
    *flags: str,
    workers_of: Callable[[RunningServer], list[int]] = workers_of,
    faults: Sequence[signal.Signals] = FAULTS,
) -> None:
    """Lose one worker after the other. All processes of the engine must end with it.

    `workers_of`: finds the process ids of a server's workers.
    """
    told: dict[str, list[float]] = {}
    restarts: list[float] = []
    flags += ("--max-engine-restarts", "100", "--num-gpu-blocks-override", "2000")
    with running_server(folder, *flags) as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            for number in range(NUM_FAILURES):
                clients = Clients(server.url, number)
                wait_for(lambda: server.load()["num_running"] == NUM_STREAMS)
                workers = workers_of(server)
                family = family_of(server, workers)
                turn, kind = divmod(number, len(faults))
                began = time.monotonic()
                os.kill(workers[turn % len(workers)], faults[kind])
                clients.join()
                assert [end for end, _ in clients.ends] == ["told"] * NUM_STREAMS
                seconds = max(at for _, at in clients.ends) - began
                told.setdefault(faults[kind].name, []).append(seconds)
                wait_for(lambda: http.get("/ready").status_code == 200)
                restarts.append(time.monotonic() - began)
                wait_for(lambda family=family: not any(map(is_alive, family)))
                assert len(workers_of(server)) == len(workers)
                body = {"prompt": f"after {number}", "max_tokens": 4}
                assert http.post("/v1/completions", json=body).status_code == 200
        assert server.wait_until_empty()["kv_cache_usage"] == 0
        family = family_of(server, workers_of(server))
        os.kill(server.process.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, family)))
    for name, found in told.items():
        record(f"seconds until all clients had an answer, {name}", round(max(found), 3))
    record("seconds until ready, median", round(statistics.median(restarts), 1))
    record("failures", NUM_FAILURES)


def family_of(server: RunningServer, workers: Sequence[int]) -> list[psutil.Process]:
    """The engine's process, all that it has started, and the workers."""
    family = psutil.Process(server.process.pid).children(recursive=True)
    return [*family, *map(psutil.Process, workers)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
