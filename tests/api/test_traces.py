"""OpenTelemetry traces of real requests, as a collector receives them."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tokenmill.api.listening import bind
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.plugins.observers.otel import traces

from .serving import PATIENCE, SteeredExecutor, serve_engine, toy_engine

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 4}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes OTLP over HTTP, and keeps the spans and the names of their services."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.services: set[str] = set()

    async def take(self, request: Request) -> Response:
        sent = ExportTraceServiceRequest.FromString(await request.body())
        for resource in sent.resource_spans:
            named = values(resource.resource)
            self.services.add(named["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return Response(b"", media_type="application/x-protobuf")


@contextlib.contextmanager
def collecting(host: str) -> Iterator[Collector]:
    """A collector at an address of this machine."""
    found = Collector()
    app = Starlette(routes=[Route("/v1/traces", found.take, methods=["POST"])])
    with bind(host, 0) as sock, running(app, sock):
        found.url = f"http://{host}:{sock.getsockname()[1]}/v1/traces"
        yield found


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting("127.0.0.1") as found:
        yield found


@contextlib.contextmanager
def running(app: Starlette, sock: Any) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    end = time.monotonic() + PATIENCE
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def values(message: Any) -> dict[str, Any]:
    """The attributes of a protobuf message."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes
    }


def test_each_choice_is_a_span_in_the_trace_of_its_caller(collector: Collector) -> None:
    engine = toy_engine(SteeredExecutor(step_seconds=0.005), otlp_traces_endpoint=collector.url)
    began = time.time_ns()
    with serve_engine(engine) as served, served.client() as http:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "abc"}
        assert http.post("/v1/completions", json=ASK | {"n": 2}, headers=headers).is_success
        assert http.post("/v1/completions", json=ASK).is_success
        served.wait_idle()
    ended = time.time_ns()
    assert collector.services == {"tokenmill"}
    assert len(collector.spans) == 3  # sent at the latest when the engine closes
    children = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in children] == [PARENT, PARENT]
    for span in collector.spans:
        assert (span.name, span.kind) == ("llm_request", Span.SPAN_KIND_SERVER)
        assert began < span.start_time_unix_nano < span.end_time_unix_nano < ended
        found = values(span)
        assert found["gen_ai.usage.input_tokens"] == 3
        assert found["gen_ai.usage.output_tokens"] == 4
        assert found["gen_ai.response.finish_reason"] == "length"
        assert found["gen_ai.response.model"] == "simulated"
        seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert found["gen_ai.latency.e2e"] == pytest.approx(seconds, abs=1e-3)
        first = found["gen_ai.latency.time_to_first_token"]
        inference = found["gen_ai.latency.time_in_model_inference"]
        stages = {"queue": "time_in_queue", "prefill": "time_in_model_prefill"}
        queue, prefill = (found[f"gen_ai.latency.{name}"] for name in stages.values())
        assert first == pytest.approx(queue + prefill)
        assert inference == pytest.approx(prefill + found["gen_ai.latency.time_in_model_decode"])
    assert {values(span)["gen_ai.request.id"] for span in children} == {"cmpl-abc"}


def test_a_trace_that_is_not_sampled_and_a_wrong_header_are_honoured(collector: Collector) -> None:
    with (
        serve_engine(toy_engine(otlp_traces_endpoint=collector.url)) as served,
        served.client() as http,
    ):
        for header in (f"00-{TRACE}-{PARENT}-00", "nonsense", "x" * 5000):
            assert http.post(
                "/v1/completions", json=ASK, headers={"traceparent": header}
            ).is_success
        served.wait_idle()
    assert len(collector.spans) == 2
    assert TRACE not in {span.trace_id.hex() for span in collector.spans}
    assert not any(span.parent_span_id for span in collector.spans)


def test_a_failed_request_is_a_span_with_an_error(collector: Collector) -> None:
    executor = SteeredExecutor()
    executor.failure = RuntimeError("planted")
    with (
        serve_engine(toy_engine(executor, otlp_traces_endpoint=collector.url)) as served,
        served.client() as http,
    ):
        assert http.post("/v1/completions", json=ASK).status_code == 500
    [span] = collector.spans
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert "gen_ai.latency.time_to_first_token" not in values(span)


def test_a_collector_that_is_down_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "FLUSH_SECONDS", 0.1)
    with bind("127.0.0.1", 0) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1/traces"
    with serve_engine(toy_engine(otlp_traces_endpoint=url)) as served, served.client() as http:
        assert http.post("/v1/completions", json=ASK).is_success


def test_without_opentelemetry_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "tokenmill.plugins.observers.otel.traces", raising=False)
    config = EngineConfig(otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces")
    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk"):
        PluginHost.load(config)
    with pytest.raises(ConfigError, match="is not a URL"):
        PluginHost.load(EngineConfig(otlp_traces_endpoint="localhost:4318"))
