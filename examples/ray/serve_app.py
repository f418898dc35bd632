"""Replicas of tokenmill's server on Ray Serve, which starts more of them under load: see README."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import StreamingResponse

from tokenmill import AsyncEngine, create_app

CORES = int(os.environ.get("CORES_PER_REPLICA", "1"))
PREFIX = 1024  # bytes of a request
SLACK = 4  # open requests that a replica may have more than another one


class PrefixRouter(RequestRouter):
    """Sends requests with the same beginning to the same replica, while it is not too busy."""

    queue_len_response_deadline_s = 1.0  # after Serve's 0.1 s, a busy one would be passed over

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest
    ) -> list[list[RunningReplica]]:
        beginning = pending_request.args[1][:PREFIX]
        num_open = {one: self.replica_queue_len_cache.get(one) or 0 for one in self.curr_replicas}

        def rank(replica: RunningReplica) -> tuple[bool, bytes]:
            is_busy = num_open[replica.replica_id] > min(num_open.values()) + SLACK
            name = replica.replica_id.unique_id.encode()
            return is_busy, hashlib.sha256(name + beginning).digest()

        return [[replica] for replica in sorted(candidate_replicas, key=rank)]


@serve.deployment(
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 8},
    max_ongoing_requests=64,
    ray_actor_options={"num_cpus": CORES},
    request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
)
class Replica:
    """An engine, and the server's HTTP API over it, without a port."""

    async def __init__(self, options: dict[str, Any]) -> None:
        first = serve.get_replica_context().rank.local_rank * CORES
        if own := sorted(os.sched_getaffinity(0))[first : first + CORES]:
            os.sched_setaffinity(0, own)  # replicas on the same cores would wait for each other
        self._engine = AsyncEngine(**options)
        await self._engine.start()
        self._app = create_app(self._engine)

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of ASGI with which the API answers a request."""
        messages: asyncio.Queue[Any] = asyncio.Queue(16)
        asked: asyncio.Queue[Any] = asyncio.Queue()
        asked.put_nowait({"type": "http.request", "body": body})

        async def compute() -> None:
            try:
                await self._app(scope, asked.get, messages.put)
            except Exception:
                await messages.put({"body": b"", "more_body": False})  # ends the loop below
                raise

        task = asyncio.create_task(compute())
        try:
            while (message := await messages.get()).get("more_body", True):
                yield message
            yield message
        finally:
            task.cancel()  # also when the client has left

    async def check_health(self) -> None:
        """Let Serve replace this replica when its engine has stopped."""
        if not self._engine.load().is_alive:
            raise RuntimeError("the engine stopped")


@serve.deployment
class Front:
    """Reads requests, so that the router sees their bodies, and passes on the answers."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> StreamingResponse:
        parts = ("type", "method", "path", "query_string", "headers", "client")
        scope = {name: request.scope[name] for name in parts}
        messages = self._replicas.answer.remote(scope, await request.body())
        begun = await anext(messages)
        answer = StreamingResponse((one["body"] async for one in messages), begun["status"])
        # Serve adds the request's id itself: a client would get it twice.
        answer.raw_headers = [one for one in begun["headers"] if one[0] != b"x-request-id"]
        return answer


def build(options: dict[str, Any]) -> serve.Application:
    """The application. `options`: fields of EngineConfig, as in `model=PATH max_num_seqs=8`."""
    fields = {k: int(v) if str(v).isdigit() else v for k, v in options.items()}
    return Front.bind(Replica.bind(fields))
