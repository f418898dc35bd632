"""OpenTelemetry traces, if --otlp-traces-endpoint is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....plugin import ConfigError, PluginContext, Registry, hookimpl, kinds

if TYPE_CHECKING:
    from .traces import OtelTraces

TOKENMILL_API = (1, 1)


def make_otel(context: PluginContext) -> OtelTraces | None:
    """Sends a span for each request to a collector, by OTLP over HTTP.

    Raises ConfigError if OpenTelemetry is not installed.
    """
    endpoint = context.config.otlp_traces_endpoint
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint!r} is not a URL such as "
            "http://localhost:4318/v1/traces"
        )
    try:
        from .traces import OtelTraces
    except ImportError as error:
        raise ConfigError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({error}): pip install "
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from error
    return OtelTraces(endpoint)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.OBSERVER, "otel", make_otel)
