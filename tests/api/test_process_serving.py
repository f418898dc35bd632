"""Keys, limits, ids, traces and the state work over an engine in a process of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.log import JsonFormatter
from tokenmill.core.processes.place import Place

from .serving import serve_engine
from .test_keys import FILE, write
from .test_traces import ASK, PARENT, TRACE, Collector, collector, values
from .toy_process import toy_process

__all__ = ["collector"]
HEADERS = {
    "Authorization": "Bearer sk-search",
    "X-Request-Id": "abc",
    "traceparent": f"00-{TRACE}-{PARENT}-01",
}


@pytest.fixture
def output() -> Iterator[StringIO]:
    handler = logging.StreamHandler(stream := StringIO())
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tokenmill")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "replicas", [{}, {"places": (Place(), Place()), "router": "round-robin"}], ids=["one", "two"]
)
def test_what_the_api_knows_of_a_request_reaches_the_engine_s_process(
    replicas: dict[str, Any],
    tmp_path: Path,
    collector: Collector,
    output: StringIO,
) -> None:
    engine = toy_process(
        otlp_traces_endpoint=collector.url, scheduling_policy="priority", **replicas
    )
    file = write(tmp_path, FILE)
    with (
        serve_engine(engine, api_key_file=file, admin_key="sk-admin") as served,
        served.client(headers=dict(HEADERS)) as http,
    ):
        statuses = [http.post("/v1/completions", json=ASK).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        admin = {"Authorization": "Bearer sk-admin"}
        with http.stream(
            "POST",
            "/v1/completions",
            json=ASK | {"max_tokens": 500, "stream": True, "priority": 7},
            headers=admin,
        ) as begun:
            assert begun.status_code == 200, begun.read()
            state = http.get("/debug/state", headers=admin).json()
        [live] = state["requests"]
        known = (live["request_id"], live["api_key_id"], live["priority"])
        assert known == ("cmpl-abc", "admin", 7)
    # The answer that was left may have generated any number of tokens.
    ended = [(span, values(span)["gen_ai.response.finish_reason"]) for span in collector.spans]
    done = [span for span, reason in ended if reason == "length"]
    assert {values(span)["gen_ai.usage.output_tokens"] for span in done} == {4}
    assert [span.trace_id.hex() for span in done] == [TRACE, TRACE]
    assert {values(span)["gen_ai.request.id"] for span in done} == {"cmpl-abc"}
    for line in output.getvalue().splitlines():
        assert json.loads(line)["logger"].startswith("tokenmill.")
