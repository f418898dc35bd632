"""Debian's Prometheus scrapes a server, and answers the queries of two Grafana boards: vLLM's and
our own."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.serving import Served, SteeredExecutor, serve_engine, toy_engine
from tests.docs.pages import ROOT

from .parts import need

PATIENCE = 120.0
BOARD = ROOT / "examples/grafana/tokenmill.json"
MODEL = '{model_name="simulated"}'
CONFIGURATION = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: engine, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def board() -> dict[str, str]:
    """The queries by name: quantiles and averages, rates, heat maps, gauges and finish reasons.

    They have the metrics and the forms of vLLM's boards, in which `$model_name` is a label.
    """
    queries = {}
    for name in ("e2e_request_latency", "inter_token_latency", "time_to_first_token"):
        metric = f"vllm:{name}_seconds"
        for quantile in (0.5, 0.9, 0.95, 0.99):
            inner = f"sum by (le) (rate({metric}_bucket{MODEL}[1m]))"
            queries[f"{name} {quantile}"] = f"histogram_quantile({quantile}, {inner})"
        average = f"rate({metric}_sum{MODEL}[1m]) / rate({metric}_count{MODEL}[1m])"
        queries[f"{name} average"] = average
    for name in (
        *("prompt_tokens_total", "generation_tokens_total"),
        *(f"request_{stage}_time_seconds_sum" for stage in ("queue", "prefill", "decode")),
        "request_max_num_generation_tokens_sum",
    ):
        queries[name] = f"rate(vllm:{name}{MODEL}[1m])"
    for name in ("request_prompt_tokens", "request_generation_tokens"):
        queries[name] = f"sum by (le) (increase(vllm:{name}_bucket{MODEL}[1m]))"
        inner = f"sum by (le, model_name) (rate(vllm:{name}_bucket{MODEL}[1m]))"
        queries[f"{name} 0.9"] = f"histogram_quantile(0.9, {inner})"
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        queries[name] = f"vllm:{name}{MODEL}"
    for name in ("prompt_tokens", "generation_tokens"):
        per_request = (f"sum(rate(vllm:{m}_total{MODEL}[1m]))" for m in (name, "request_success"))
        queries[f"{name} per request"] = " / ".join(per_request)
    reasons = f"increase(vllm:request_success_total{MODEL}[1m])"
    queries["finish reasons"] = f"sum by (finished_reason) ({reasons})"
    return queries


def own_board() -> dict[str, str]:
    """The queries of examples/grafana by panel, with its variables as Grafana replaces them."""
    queries = {}
    for panel in json.loads(BOARD.read_text())["panels"]:
        for one in panel["targets"]:
            query = one["expr"].replace("${prefix}", "vllm:").replace("$model", ".*")
            query = query.replace("$__rate_interval", "1m")
            assert "$" not in query, query
            queries[f"{panel['title']} {one['refId']}"] = query
    return queries


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    engine = toy_engine(SteeredExecutor(step_seconds=0.01), metrics_prefix="vllm:")
    with serve_engine(engine) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        prometheus_process(folder, urlsplit(served.url).netloc) as address,
        httpx.Client(base_url=f"http://{address}", trust_env=False) as client,
    ):
        yield client


@contextlib.contextmanager
def prometheus_process(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus that scrapes `target`; yields its address."""
    command = need("prometheus", "prometheus")
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(target=target))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, *(f"--{name}={value}" for name, value in flags.items())], stderr=log
        )
    try:
        yield address
    finally:
        process.terminate()
        process.wait(60)


def ask(prometheus: httpx.Client, query: str) -> list[dict[str, Any]]:
    try:
        answer = prometheus.get("/api/v1/query", params={"query": query})
    except httpx.ConnectError:
        return []  # it is starting
    if answer.status_code == 503:
        return []
    body = answer.json()
    assert body["status"] == "success", body
    found: list[dict[str, Any]] = body["data"]["result"]
    return found


def generate(served: Served) -> None:
    body = {"prompt": "what a metric", "max_tokens": 20}
    with served.client() as http:
        assert http.post("/v1/completions", json=body).status_code == 200


def has_numbers(found: list[dict[str, Any]]) -> bool:
    return bool(found) and all(math.isfinite(float(one["value"][1])) for one in found)


def test_every_query_of_the_boards_has_an_answer(served: Served, prometheus: httpx.Client) -> None:
    """Rates need two scrapes with requests between them."""
    missing = board() | own_board()
    end = time.monotonic() + PATIENCE
    while missing:
        assert time.monotonic() < end, f"no answer: {missing}"
        generate(served)
        missing = {
            n: query for n, query in missing.items() if not has_numbers(ask(prometheus, query))
        }
        time.sleep(0.5)
    tokens = ask(prometheus, f"vllm:generation_tokens_total{MODEL}")
    assert len(tokens) == 1, "one series per counter"
    names = prometheus.get("/api/v1/label/model_name/values").json()["data"]
    assert names == ["simulated"]


def test_promtool_accepts_the_text(served: Served) -> None:
    generate(served)
    need("prometheus", "prometheus")
    with served.client() as http:
        text = http.get("/metrics").content
    done = subprocess.run(
        [need("promtool", "prometheus"), "check", "metrics"], input=text, capture_output=True
    )
    assert b"error" not in done.stderr.lower(), done.stderr
