"""A Ray cluster that loses nodes, or that cannot be joined: what the engine says, and does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.check.ray.machines import HEAD, OTHER, RAY, SESSIONS
from tests.server_process import running_server
from tests.test_engine_restarts import NUM_STREAMS, PATIENCE, Clients, wait_for

from .test_failures import cut, kill, mend

SECOND_PORT = 6390


def test_requests_of_a_lost_worker_and_a_lost_node_are_no_suspects(
    model: Path, spread: Path, tmp_path: Path
) -> None:
    flags = ["--model", str(model), "--device", "cpu", "--plugins-file", str(spread)]
    flags += ["--tensor-parallel-size", "2", "--num-gpu-blocks-override", "2000"]
    with running_server(tmp_path, *flags, "--max-engine-restarts", "100") as server:
        for fault in (kill, cut):
            clients = Clients(server.url, 0)
            wait_for(lambda: server.load()["num_running"] == NUM_STREAMS)
            fault()
            clients.join()
            assert [end for end, _ in clients.ends] == ["told"] * NUM_STREAMS
            mend()
            wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
        events = [json.loads(line) for line in server.log.read_text().splitlines()]
        loaded = [event for event in events if event["event"] == "model_loaded"]
        assert {event["address"] for event in loaded} == {HEAD, OTHER}
        reasons = [event["reason"] for event in events if event["event"] == "engine_lost"]
        # Ray decides anew at each start which rank stands on which node.
        ranks = {event["rank"] for event in loaded if event["address"] == OTHER}
        assert {f"node {OTHER} does not answer (rank {rank})" for rank in ranks} & set(reasons)
        for i in range(NUM_STREAMS):
            body = {"prompt": f"story 0, part {i}", "max_tokens": 4}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[psutil.Process]:
    """The process of the head of a second cluster on this machine."""
    address = f"{HEAD}:{SECOND_PORT}"
    flags = ["--head", f"--port={SECOND_PORT}", f"--node-ip-address={HEAD}"]
    flags += ["--include-dashboard=false", "--ray-client-server-port=20990"]
    flags += ["--temp-dir", str(SESSIONS / "second")]
    subprocess.run([*RAY, *flags], stdin=subprocess.DEVNULL, check=True)
    monkeypatch.setenv("RAY_ADDRESS", address)
    port = f"--gcs_server_port={SECOND_PORT}"
    second = [p for p in psutil.process_iter() if is_of(p, port, address)]
    [found] = [one for one in second if one.name() == "gcs_server"]
    yield found
    for one in second:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def is_of(process: psutil.Process, *words: str) -> bool:
    with suppress(psutil.Error):
        return any(word in argument for argument in process.cmdline() for word in words)
    return False


def test_a_head_that_dies_ends_all_requests_and_is_named(
    model: Path, tmp_path: Path, head: psutil.Process
) -> None:
    flags = ["--model", str(model), "--device", "cpu", "--distributed-executor-backend", "ray"]
    flags += ["--num-gpu-blocks-override", "2000", "--max-engine-restarts", "1"]
    with running_server(tmp_path, *flags) as server:
        clients = Clients(server.url, 0)
        wait_for(lambda: server.load()["num_running"] == NUM_STREAMS)
        head.kill()
        seconds = wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        print(f"not ready after {seconds:.2f} s")
        clients.join()
        assert [end for end, _ in clients.ends] == ["told"] * NUM_STREAMS

        def reasons(event: str) -> list[str]:
            lines = [json.loads(line) for line in server.log.read_text().splitlines()]
            return [line["reason"] for line in lines if line["event"] == event]

        wait_for(lambda: len(reasons("engine_not_restarted")) >= 3)
        assert reasons("engine_lost") == [
            f"the head of the Ray cluster ({HEAD}:{SECOND_PORT}) died"
        ]
        found = f"nothing answers at host {HEAD}, port {SECOND_PORT}"
        assert all(found in reason for reason in reasons("engine_not_restarted"))
