"""The application: replicas, each with the server's HTTP API over an engine of its own."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api.app import create_app
from ..api.server import configure_logging
from ..assembly import build_supervised_engine
from ..core.config import EngineConfig
from ..core.errors import ConfigError
from ..core.interfaces import no_progress
from .routing import PrefixRouter

FRONTS = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
FRONT = "tokenmill.ray_serve:middlewares"
REPLICA = "x-tokenmill-replica"
"""Header of each answer: the id of the replica."""


@serve.deployment(
    name="Replica",
    max_ongoing_requests=1000,  # the engine queues, and refuses what is too much
    graceful_shutdown_timeout_s=3600,  # as long as the longest request may take
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 16},
    ray_actor_options={"num_cpus": 1},
    request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
)
@serve.ingress()
class Replica:
    """An engine in a process of its own, and the HTTP API without a port."""

    def __init__(self, options: dict[str, Any], server: dict[str, Any]) -> None:
        if os.environ.get(FRONTS) != FRONT:
            raise ConfigError(f"set {FRONTS}={FRONT} before `ray start` on all machines")
        context = serve.get_replica_context()
        self._name, rank = context.replica_id.unique_id, context.rank.rank
        handler = configure_logging("info", as_json=True)
        handler.addFilter(lambda record: _note(record, replica=self._name, rank=rank))
        _bind(context.rank.local_rank)
        config = EngineConfig.from_options(**options)
        if config.data_parallel_size > 1:
            raise ConfigError("data_parallel_size has no effect here: set autoscaling_config")
        self._engine = build_supervised_engine(config, no_progress)
        self._app = create_app(self._engine, **server)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The API. Its lifespan, which Serve runs, starts the engine."""
        return _named(self._app, self._name)

    async def check_health(self) -> None:
        """Let Serve replace this replica when its engine is not started again."""
        load = self._engine.load()
        if not (load.is_alive or load.is_restarting):
            raise RuntimeError("the engine stopped")


def build(options: dict[str, Any]) -> serve.Application:
    """The application. `options`: `args` in serve.yaml: fields of EngineConfig, and as `server`
    fields of ServerSettings."""
    fields = dict(options)
    server = fields.pop("server", {})
    return Replica.bind(fields, server)  # type: ignore[attr-defined]


def _note(record: logging.LogRecord, **fields: object) -> bool:
    vars(record).update(fields)
    return True


def _bind(local_rank: int) -> None:
    """Use the number of cores that Ray reserved, other ones than the node's other replicas."""
    num_cores = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
    cores = sorted(os.sched_getaffinity(0))
    if own := cores[local_rank * num_cores : (local_rank + 1) * num_cores]:
        os.sched_setaffinity(0, own)


def _named(app: ASGIApp, name: str) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REPLICA] = name
                del headers["x-request-id"]  # Serve adds it
            await send(message)

        await app(scope, receive, send_named)

    return answer
