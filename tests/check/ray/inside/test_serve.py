"""The example of Ray Serve: two replicas on two machines answer, and requests go where they fit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.test_traces import PARENT, TRACE, Collector, collecting, values
from tests.check.ray.machines import HEAD

EXAMPLE = Path(__file__).parents[4] / "examples" / "ray"
PATIENCE = 300.0
CONFIG = """
applications:
- name: tokenmill
  import_path: serve_app:build
  args:
    model: {model}
    device: cpu
    scheduling_policy: priority
    otlp_traces_endpoint: {traces}
  deployments:
  - name: Replica
    num_replicas: 2
    autoscaling_config: null
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Reached from both machines."""
    with collecting(HEAD) as found:
        yield found


@pytest.fixture(scope="module")
def url(
    model: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[str]:
    tmp_path = tmp_path_factory.mktemp("serve")
    config = tmp_path / "serve.yaml"
    config.write_text(CONFIG.format(model=model, traces=collector.url))
    command = [sys.executable, "-m", "ray.serve.scripts", "run", "--working-dir", EXAMPLE, config]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = "http://127.0.0.1:8000"
    try:
        wait_until_served(process, f"{url}/v1/models", tmp_path / "log")
        yield url
    finally:
        process.send_signal(signal.SIGINT)  # `serve run` ends its replicas, too
        process.wait(PATIENCE)


def wait_until_served(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if httpx.get(url, timeout=PATIENCE).status_code == 200:
                return
        except httpx.ConnectError:
            pass
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def test_it_streams_and_sends_equal_beginnings_to_one_replica(url: str) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "stream": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert len(events) > 2 and events[-1] == "data: [DONE]"
    cached: list[int] = []  # tokens of each repeated prompt that its replica knew
    for first in range(1, 13):
        body = {"prompt": [first] * 400, "max_tokens": 1}
        usages = [
            httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).json()["usage"]
            for _ in range(3)
        ]
        new, *repeated = [one["prompt_tokens_details"]["cached_tokens"] for one in usages]
        assert new == 0
        cached += repeated
    # Chance would know 15 of 24. A replica that tells its load too late is passed over by Serve.
    assert sum(one > 300 for one in cached) >= 21, cached


def test_id_trace_and_priority_pass_through_the_front_to_the_replicas(
    url: str, collector: Collector
) -> None:
    headers = {"X-Request-Id": "abc", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    for first in range(21, 29):  # some go to each replica
        body = {"prompt": [first] * 400, "max_tokens": 1, "priority": first}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        assert answer.headers.get_list("x-request-id") == ["abc"]
    wrong = httpx.post(f"{url}/v1/completions", json=body | {"priority": "first"}, timeout=PATIENCE)
    assert wrong.status_code == 400 and "priority" in wrong.text
    end = time.monotonic() + PATIENCE
    while len(found := [one for one in collector.spans if one.trace_id.hex() == TRACE]) < 8:
        assert time.monotonic() < end, f"only {len(found)} spans"
        time.sleep(0.1)  # replicas send them in batches
    assert {span.parent_span_id.hex() for span in found} == {PARENT}
    assert {values(span)["gen_ai.request.id"] for span in found} == {"cmpl-abc"}
