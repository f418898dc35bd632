"""The times of a request in its answer, and the fingerprint of the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .serving import SteeredExecutor, serve_engine, toy_engine

METRICS = {
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
}
NUM_TOKENS = 5
CHAT = "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = "/v1/completions", {"prompt": "abc"}
Call = tuple[str, dict[str, Any]]
both = pytest.mark.parametrize("call", [CHAT, COMPLETION], ids=["chat", "completion"])


@pytest.fixture(scope="module")
def measured() -> Iterator[httpx.Client]:
    """A server that adds metrics, whose steps take some milliseconds."""
    engine = toy_engine(SteeredExecutor(step_seconds=0.003))
    with serve_engine(engine, per_request_metrics=True) as served, served.client() as http:
        yield http


def send(http: httpx.Client, call: Call, **fields: Any) -> httpx.Response:
    path, body = call
    response = http.post(path, json={"max_tokens": NUM_TOKENS, "ignore_eos": True} | body | fields)
    assert response.status_code == 200, response.text
    return response


def events(http: httpx.Client, call: Call, **fields: Any) -> list[dict[str, Any]]:
    lines = send(http, call, stream=True, **fields).text.strip().split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@both
def test_the_metrics_are_the_times_of_the_server_timing(measured: httpx.Client, call: Call) -> None:
    response = send(measured, call)
    found = response.json()["metrics"]
    assert found.keys() == METRICS
    header = response.headers["server-timing"]
    queue, prefill = (
        float(re.findall(rf"{n};dur=([0-9.]+)", header)[0]) for n in ("queue", "prefill")
    )
    assert found["queue_time_ms"] == pytest.approx(queue, abs=0.01)
    assert found["time_to_first_token_ms"] == pytest.approx(prefill, abs=0.01)
    assert found["time_to_first_token_ms"] >= 3
    assert found["generation_time_ms"] >= 3 * (NUM_TOKENS - 1)
    mean = found["generation_time_ms"] / (NUM_TOKENS - 1)
    assert found["mean_itl_ms"] == pytest.approx(mean, abs=0.01)
    computed = found["time_to_first_token_ms"] + found["generation_time_ms"]
    assert found["tokens_per_second"] == pytest.approx(1000 * NUM_TOKENS / computed, rel=0.01)


@both
def test_a_stream_has_metrics_in_its_chunk_with_the_usage(
    measured: httpx.Client, call: Call
) -> None:
    *chunks, last = events(measured, call, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["metrics"].keys() == METRICS
    assert last["metrics"]["generation_time_ms"] > 0
    assert chunks and not any("metrics" in c or "system_fingerprint" in c for c in chunks)
    assert not any("metrics" in chunk for chunk in events(measured, call))


def test_one_token_has_no_time_between_tokens(measured: httpx.Client) -> None:
    found = send(measured, COMPLETION, max_tokens=1).json()["metrics"]
    assert found["mean_itl_ms"] is None and found["generation_time_ms"] == 0
    assert found["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("call", "fields"),
    [(CHAT, {"n": 2}), (COMPLETION, {"n": 2}), (COMPLETION, {"prompt": ["a", "b"]})],
)
def test_several_choices_have_no_common_metrics(
    measured: httpx.Client, call: Call, fields: dict[str, Any]
) -> None:
    assert "metrics" not in send(measured, call, **fields).json()
    options = {"include_usage": True}
    assert not any("metrics" in e for e in events(measured, call, stream_options=options, **fields))


@both
def test_metrics_need_the_flag_and_a_fingerprint_does_not(http: httpx.Client, call: Call) -> None:
    answer = send(http, call).json()
    assert "metrics" not in answer
    assert re.fullmatch(r"tokenmill-[^-]+-[0-9a-f]{8}", answer["system_fingerprint"])
    last = events(http, call, stream_options={"include_usage": True})[-1]
    assert last["system_fingerprint"] == answer["system_fingerprint"]


def fingerprint(**options: Any) -> str:
    with serve_engine(toy_engine(**options)) as served, served.client() as http:
        found: str = send(http, COMPLETION).json()["system_fingerprint"]
        return found


def test_a_fingerprint_stays_after_a_restart_and_changes_with_the_settings() -> None:
    assert fingerprint() == fingerprint() != fingerprint(max_num_seqs=3)
    assert fingerprint(model="folder") == fingerprint(model=Path("folder"))


def test_a_fingerprint_has_the_content_of_plugins_toml_and_not_its_place(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return fingerprint(plugins_file=str(tmp_path / name))

    plain, limited = write("a.toml", "[scheduler]\nuse = 'chunked'"), "[plugins]\nstrict = false\n"
    assert plain == fingerprint() == write("b.toml", "# the default\n[scheduler]\nuse = 'chunked'")
    assert write("a.toml", limited) == write("c.toml", limited) != plain
