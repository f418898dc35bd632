"""KV events of engine processes: one endpoint per replica, and restarts."""

from __future__ import annotations

import os
import signal
import tempfile
import time

from tests.plugins.kv_events.consumer import Consumer
from tokenmill.core.processes.place import Place

from .serving import PATIENCE, serve_engine
from .test_replicas import pid_of, wait_until_all_serve
from .toy_process import toy_process

NUM_PROMPTS = 40
"""Many, so that the restarted engine is recognized by its low numbers."""


def test_each_replica_has_an_endpoint_and_after_a_restart_its_index_is_empty() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        endpoint, replay = f"ipc://{folder}/e", f"ipc://{folder}/r"
        engine = toy_process(
            stall_timeout=1.0,
            max_restarts=100,
            places=(Place(),) * 2,
            router="round-robin",
            kv_events_config={
                "enable_kv_cache_events": True,
                "endpoint": endpoint,
                "replay_endpoint": replay,
            },
        )
        with (
            serve_engine(engine) as served,
            served.client() as http,
            Consumer(endpoint, replay) as first,
            Consumer(f"{endpoint}_dp1", f"{replay}_dp1") as second,
        ):
            for number in range(NUM_PROMPTS):
                body = {"prompt": f"{number}: a prompt", "max_tokens": 1}
                assert http.post("/v1/completions", json=body).status_code == 200
            found = []
            for consumer in (first, second):
                consumer.catch_up(1 + NUM_PROMPTS // 2)
                assert consumer.kinds == ["AllBlocksCleared"] + ["BlockStored"] * (NUM_PROMPTS // 2)
                found.append({tokens for _, tokens in consumer.blocks.values()})
            assert (first.ranks, second.ranks) == ({0}, {1})
            assert found[0] and found[1] and found[0] != found[1]
            os.kill(pid_of(served, 1), signal.SIGKILL)
            served.wait_until(lambda load: load["replicas"][1]["is_restarting"])
            wait_until_all_serve(served)
            end = time.monotonic() + PATIENCE
            while not second.num_restarts:  # it hears the next batch once it is connected again
                assert time.monotonic() < end
                body = {"prompt": f"{time.monotonic()}: a new prompt", "max_tokens": 1}
                assert http.post("/v1/completions", json=body).status_code == 200
                second.receive_some()
            assert second.kinds[1 + NUM_PROMPTS // 2] == "AllBlocksCleared"
            assert 0 < len(second.blocks) < len(found[1])
