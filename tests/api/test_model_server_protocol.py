"""What an endpoint picker of Kubernetes' gateway API reads from a model server.

The requirements are those of docs/proposals/003-model-server-protocol in
kubernetes-sigs/gateway-api-inference-extension, with the names of its column for vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .serving import Served, SteeredExecutor, serve_engine, toy_engine

NUM_BLOCKS = 32
"""Of 4 tokens, see SteeredExecutor."""
QUEUED, RUNNING, USAGE = (
    f"vllm:{name}"
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
)


@pytest.fixture
def executor() -> Iterator[SteeredExecutor]:
    executor = SteeredExecutor(num_blocks=NUM_BLOCKS)
    yield executor
    executor.gate.set()


@pytest.fixture
def served(executor: SteeredExecutor) -> Iterator[Served]:
    engine = toy_engine(executor, metrics_prefix="vllm:", max_num_seqs=1)
    with serve_engine(engine) as served:
        yield served


def scrape(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(families: dict[str, Any], name: str) -> float:
    """The value of a gauge with one series."""
    family = families[name]
    assert family.type == "gauge"
    [sample] = family.samples
    return float(sample.value)


def test_both_apis_answer(served: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with served.client() as http:
        for path, body in (
            ("/v1/completions", {"prompt": "hi"}),
            ("/v1/chat/completions", {"messages": messages}),
        ):
            answer = http.post(path, json=body | {"model": "simulated", "max_tokens": 2})
            assert answer.status_code == 200 and answer.json()["choices"], answer.text


def test_queued_and_running_requests_and_the_use_of_the_cache_are_gauges_of_now(
    served: Served, executor: SteeredExecutor
) -> None:
    body = {"prompt": "eight ch", "max_tokens": 4, "ignore_eos": True}
    with served.client() as http, ThreadPoolExecutor(5) as threads:
        idle = scrape(http)
        assert [value(idle, name) for name in (QUEUED, RUNNING, USAGE)] == [0, 0, 0]
        executor.gate.clear()
        sent = [threads.submit(http.post, "/v1/completions", json=body) for _ in range(5)]
        served.wait_until(lambda load: load["num_running"] + load["num_waiting"] == 5)
        busy = scrape(http)
        assert (value(busy, QUEUED), value(busy, RUNNING)) == (4, 1)
        assert 0 < value(busy, USAGE) <= 1, "a fraction, as vLLM's is"
        executor.gate.set()
        assert all(one.result().status_code == 200 for one in sent)
        served.wait_idle()
        done = scrape(http)
        assert [value(done, name) for name in (QUEUED, RUNNING, USAGE)] == [0, 0, 0]


def test_the_size_of_the_cache_is_in_labels(served: Served) -> None:
    with served.client() as http:
        family = scrape(http)["vllm:cache_config_info"]
    [sample] = family.samples
    assert (family.type, sample.value) == ("gauge", 1)
    labels = sample.labels
    assert (int(labels["block_size"]), int(labels["num_gpu_blocks"])) == (4, NUM_BLOCKS)


def test_a_server_without_adapters_says_so(served: Served) -> None:
    """The value is the time of the last change, by which a picker finds the latest series."""
    with served.client() as http:
        family = scrape(http)["vllm:lora_requests_info"]
    [sample] = family.samples
    assert family.type == "gauge" and 0 < sample.value <= time.time()
    assert int(sample.labels["max_lora"]) == 0
    assert sample.labels["running_lora_adapters"] == sample.labels["waiting_lora_adapters"] == ""
