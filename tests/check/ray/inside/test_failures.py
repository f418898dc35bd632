"""Ray workers that are killed, hang or are cut off: requests are answered, service resumes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.check.ray.machines import CABLE
from tests.server_process import RunningServer, running_server
from tests.test_engine_restarts import NUM_STREAMS, PATIENCE, Clients, wait_for
from tokenmill.backends.execution.ray.cluster import join_cluster

WORKER = "ray::Worker"
MAX_KILLS = 10


def workers() -> list[int]:
    """The process ids of all actors, on both machines."""
    found = (process.info for process in psutil.process_iter(["pid", "name", "cmdline"]))
    return [one["pid"] for one in found if (one["cmdline"] or [""])[0].startswith(WORKER)]


def kill() -> None:
    os.kill(workers()[0], signal.SIGKILL)


def stop() -> None:
    os.kill(workers()[0], signal.SIGSTOP)


def cut() -> None:
    subprocess.run(["ip", "link", "set", CABLE, "down"], check=True)


def mend() -> None:
    subprocess.run(["ip", "link", "set", CABLE, "up"], check=True)


def test_lost_workers_end_their_requests_and_service_resumes(
    model: Path, spread: Path, tmp_path: Path
) -> None:
    flags = ["--model", str(model), "--device", "cpu", "--plugins-file", str(spread)]
    flags += ["--tensor-parallel-size", "2", "--num-gpu-blocks-override", "2000"]
    with running_server(tmp_path, *flags, "--max-engine-restarts", "100") as server:
        for number, fault in enumerate((kill, stop, cut)):
            check_service(server, number, fault)
        [engine] = psutil.Process(server.process.pid).children()
        old = workers()
        engine.kill()
        wait_for(lambda: not set(old) & set(workers()))
        wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
        server.process.kill()
        wait_for(lambda: not workers())


def test_a_killed_worker_of_each_stage_ends_its_requests_and_leaves_nothing(
    model: Path, tmp_path: Path
) -> None:
    flags = ["--model", str(model), "--device", "cpu", "--distributed-executor-backend", "ray"]
    flags += ["--pipeline-parallel-size", "2", "--num-gpu-blocks-override", "2000"]
    with running_server(tmp_path, *flags, "--max-engine-restarts", "100") as server:
        lost: set[str] = set()
        for number in range(MAX_KILLS):  # Ray may exchange the machines of the stages at a restart
            check_service(server, number, partial(kill_on_machine, random.randrange(2)))
            lost |= set(re.findall(r"worker (\d) on \S+ ended", server.log.read_text()))
            if lost == {"0", "1"}:
                break
        assert server.wait_until_empty()["kv_cache_usage"] == 0
        server.process.kill()
        wait_for(lambda: not workers())
    assert lost == {"0", "1"}, f"{MAX_KILLS} kills met one stage only"
    leave = join_cluster(None, num_cpus=0, num_gpus=0)
    import ray

    wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    leave()


def kill_on_machine(number: int) -> None:
    """Kill the only worker on one of two machines."""
    found = sorted(workers(), key=lambda pid: os.readlink(f"/proc/{pid}/ns/net"))
    assert len(found) == 2
    os.kill(found[number], signal.SIGKILL)


def check_service(server: RunningServer, number: int, fault: Callable[[], None]) -> None:
    """Requests end in a fault, and the server is ready again without help."""
    seconds = seconds_to_answers(server, number, fault)
    mend()
    more = wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    print(f"fault {number}: answered after {seconds:.2f} s, ready {more:.1f} s later")
    body = {"prompt": f"after {number}", "max_tokens": 4}
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200


def seconds_to_answers(server: RunningServer, number: int, fault: Callable[[], None]) -> float:
    clients = Clients(server.url, number)
    wait_for(lambda: server.load()["num_running"] == NUM_STREAMS)
    began = time.monotonic()
    fault()
    clients.join()
    assert [end for end, _ in clients.ends] == ["told"] * NUM_STREAMS
    return max(at for _, at in clients.ends) - began


def test_a_cluster_of_its_own_is_closed_to_others_and_ends_with_a_killed_server(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    flags = ["--model", str(model), "--device", "cpu", "--distributed-executor-backend", "ray"]
    with running_server(tmp_path, *flags) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        names = [process.name() for process in family]
        assert any(name.startswith("raylet") for name in names), names
        listening = {
            found.laddr.ip
            for process in family
            for found in process.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN
        }
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        server.process.kill()
        wait_for(lambda: not any(process.is_running() for process in family))


def test_a_wrong_token_is_refused_in_one_line_that_says_so(stranger: subprocess.Popen[str]) -> None:
    _, errors = stranger.communicate(timeout=PATIENCE)
    assert stranger.returncode != 0
    assert "set RAY_AUTH_MODE and RAY_AUTH_TOKEN" in errors.splitlines()[-1], errors
