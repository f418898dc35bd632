"""One span per choice of a request, with the names that vLLM and SGLang give to its attributes.

A span is made when the choice has ended, from the times that the engine measured. Sending happens
in a thread of OpenTelemetry's, whose queue is bounded. OpenTelemetry's environment variables apply,
for example OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ....plugin import EngineClient, Finished, FinishedRequest, FinishReason, Started, hookimpl

FLUSH_SECONDS = 3.0
"""Time that the last spans get to reach the collector when the engine closes."""
_NANO = 1_000_000_000


class OtelTraces:
    """Sends spans named llm_request. A span is a child of the caller's, if its traceparent came."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: URL that takes OTLP over HTTP, such as http://localhost:4318/v1/traces."""
        named = "OTEL_SERVICE_NAME" in os.environ
        resource = Resource.create({} if named else {"service.name": "tokenmill"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("tokenmill")
        self._propagator = TraceContextTextMapPropagator()
        self._model = ""

    @hookimpl
    def on_started(self, event: Started) -> None:
        self._model = event.model_name

    @hookimpl
    @asynccontextmanager
    async def lifespan(self, engine: EngineClient) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Send the last spans. A collector that does not answer costs FLUSH_SECONDS."""
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        now = time.time_ns()
        for request in event.requests:
            self._record(request, now)

    def _record(self, request: FinishedRequest, now: int) -> None:
        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(request.options.trace_headers),
            kind=SpanKind.SERVER,
            start_time=now - int(request.e2e_latency * _NANO),
            attributes=_attributes(request, self._model),
        )
        if request.finish_reason is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)


def _attributes(request: FinishedRequest, model: str) -> Mapping[str, str | int | float]:
    queued, prefill, decode = request.queue_time, request.prefill_time, request.decode_time
    found: dict[str, str | int | float | None] = {
        "gen_ai.request.id": request.request_id,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.n": request.n,
        "gen_ai.response.finish_reason": request.finish_reason.value,
        "gen_ai.usage.input_tokens": request.num_prompt_tokens,
        "gen_ai.usage.output_tokens": request.num_generation_tokens,
        "gen_ai.usage.cached_tokens": request.num_cached_tokens,
        "gen_ai.latency.e2e": request.e2e_latency,
        "gen_ai.latency.time_in_queue": queued,
        "gen_ai.latency.time_to_first_token": _sum(queued, prefill),
        "gen_ai.latency.time_in_model_prefill": prefill,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": _sum(prefill, decode),
    }
    return {name: value for name, value in found.items() if value is not None}


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
