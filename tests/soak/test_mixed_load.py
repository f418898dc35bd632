"""An hour of all APIs, bad requests, stalled readers, clients that leave, and engines that die.

It runs twice: with the default model, and with an engine without a model. The second answers far
more requests, so that the growth of memory can be measured. TOKENMILL_SOAK_SECONDS changes the
duration.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.recording import percentile
from tests.server_process import RunningServer, running_server

from . import watching
from .calling import Client
from .mixed_load import MixedLoad
from .watching import Sample, growth

SECONDS = float(os.environ.get("TOKENMILL_SOAK_SECONDS", "3600"))
WARM_UP = 10_000
"""Requests in which a process starts its threads, and touches its KV cache and its buffers."""
MAX_GROWTH = 1.0
"""MB of RSS per 10,000 requests."""
ROOT = Path(__file__).parents[2]
FLAGS = ("--num-gpu-blocks-override", "384", "--no-enable-log-requests")
SERVERS: dict[str, Callable[[Path], AbstractContextManager[RunningServer]]] = {
    "default model": lambda folder: running_server(folder, *FLAGS),
    "no model": lambda folder: running_server(
        folder, packages=ROOT, program=("tests.soak.no_model_server",)
    ),
}


@pytest.mark.parametrize("served", SERVERS)
def test_an_hour_of_mixed_load_with_faults_leaves_nothing_behind(
    served: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with SERVERS[served](tmp_path) as server:
        client = Client(server.url)
        model = asyncio.run(client.get("/v1/models")).json()["data"][0]["id"]
        num_files = watching.num_files(server.process.pid)
        load = MixedLoad(server, SECONDS)
        asyncio.run(load.run(model, with_logits=served != "no model"))
        for name, value in figures(load).items():
            record_property(name, value)
        assert load.wrong == [], "\n".join(load.wrong)
        assert server.wait_until_empty(60)["kv_cache_usage"] == 0
        more_files = watching.num_files(server.process.pid) - num_files
        record_property("open files of the server, more than before", more_files)
        assert more_files <= 1  # what is asked now
        metrics = asyncio.run(client.get("/metrics")).body.decode()
        assert f"engine_restarts_total {load.faults.total()}.0" in metrics
        assert "kv_blocks_leaked" not in server.log.read_text()
    for samples in (load.server_samples, load.engine_samples):
        found = growth(samples, WARM_UP)
        assert found is None or found < MAX_GROWTH


def figures(load: MixedLoad) -> dict[str, object]:
    """What the report has."""
    return {
        "minutes": round(SECONDS / 60),
        "requests": load.outcomes.total(),
        "outcomes": dict(load.outcomes.most_common()),
        "engine failures": dict(load.faults),
        "seconds until ready again": [round(seconds, 1) for seconds in load.restart_seconds],
        "/health ms, median": round(1e3 * statistics.median(load.health_seconds), 1),
        "/health ms, p99": round(1e3 * percentile(load.health_seconds, 0.99), 1),
        "server": memory(load.server_samples),
        "engines": memory(load.engine_samples),
    }


def memory(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Resident memory of a process, or of several in turn."""
    found = growth(samples, WARM_UP)
    return {
        "processes": len({one.pid for one in samples}),
        "first RSS in MB": round(samples[0].rss, 1),
        "last RSS in MB": round(samples[-1].rss, 1),
        "largest RSS in MB": round(max(one.rss for one in samples), 1),
        "MB per 10,000 requests": None if found is None else round(found, 3),
    }
