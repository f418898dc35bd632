"""A Ray cluster that loses nodes, or that cannot be joined: what the engine says, and does."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.check.ray.machines import HEAD, OTHER
from tests.server_process import running_server
from tests.test_engine_restarts import NUM_STREAMS, PATIENCE, Clients, wait_for

from .test_failures import cut, kill, mend


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
        assert f"node {OTHER} does not answer (rank 1)" in [
            event.get("reason") for event in events if event["event"] == "engine_lost"
        ]
        assert {
            (event["rank"], event["address"])
            for event in events
            if event["event"] == "model_loaded"
        } == {(0, HEAD), (1, OTHER)}
        for i in range(NUM_STREAMS):
            body = {"prompt": f"story 0, part {i}", "max_tokens": 4}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
