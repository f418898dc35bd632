"""Servers without HTTP and without an engine: each calls the hooks of one admission."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from tokenmill_shared_limits.admission import SharedLimits
from tokenmill_shared_limits.options import SharedLimitsOptions

from tokenmill import EngineConfig, RequestOptions
from tokenmill.plugin import (
    Admitted,
    Arrival,
    Finished,
    FinishedRequest,
    FinishReason,
    PluginContext,
    Refusal,
    RequestView,
)

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call with one prompt."""

    options: RequestOptions
    num_prompt_tokens: int
    max_tokens: int
    n: int


def new_call(
    prompt: int = 1, max_tokens: int = 1, *, n: int = 1, key: str = "k", **options: Any
) -> Call:
    options.setdefault("request_id", f"request-{next(_numbers)}")
    return Call(
        options=RequestOptions(api_key_id=key, **options),
        num_prompt_tokens=prompt,
        max_tokens=max_tokens,
        n=n,
    )


@dataclass(frozen=True, slots=True)
class View:
    """What `admit` reads of a RequestView."""

    call: Call
    choice_index: int

    @property
    def options(self) -> RequestOptions:
        return self.call.options

    @property
    def request_id(self) -> str:
        return str(self.call.options.request_id)

    @property
    def num_prompt_tokens(self) -> int:
        return self.call.num_prompt_tokens

    @property
    def max_tokens(self) -> int:
        return self.call.max_tokens


@dataclass(slots=True)
class Server:
    """Does what an engine does with an admission."""

    plugin: SharedLimits
    context: PluginContext
    live: list[Call] = field(default_factory=list)
    num_waits: int = 0
    """Number of calls that waited for the store."""

    async def send(
        self, prompt: int = 1, max_tokens: int = 1, *, n: int = 1, key: str = "k", **options: Any
    ) -> Refusal | None:
        """Send a call, which is live afterwards if this returns None."""
        call = new_call(prompt, max_tokens, n=n, key=key, **options)
        await self.prepare(call)
        return self.queue(call)

    async def prepare(self, call: Call) -> None:
        arrival = Arrival(
            prompt_token_ids=(1,) * call.num_prompt_tokens,
            max_tokens=call.max_tokens,
            n=call.n,
            options=call.options,
        )
        waiting = self.plugin.before_admit(arrival)
        if waiting is not None:
            self.num_waits += 1
            await waiting

    def queue(self, call: Call) -> Refusal | None:
        for index in range(call.n):
            refusal = self.plugin.admit(cast(RequestView, View(call, index)), cast(Any, None))
            if refusal is not None:
                return refusal
        self.live.append(call)
        self.plugin.on_admitted(
            Admitted(
                request_id=str(call.options.request_id),
                num_prompt_tokens=call.num_prompt_tokens,
                max_tokens=call.max_tokens,
                n=call.n,
                options=call.options,
            )
        )
        return None

    def finish(self, generated: int = 0) -> None:
        """End the oldest live call: each of its choices has generated this number of tokens."""
        call = self.live.pop(0)
        self.plugin.on_finished(
            Finished(
                requests=tuple(
                    FinishedRequest(
                        request_id=str(call.options.request_id),
                        finish_reason=FinishReason.STOP,
                        num_prompt_tokens=call.num_prompt_tokens,
                        num_generation_tokens=generated,
                        num_cached_tokens=0,
                        num_preemptions=0,
                        max_tokens=call.max_tokens,
                        n=call.n,
                        e2e_latency=1.0,
                        queue_time=None,
                        prefill_time=None,
                        decode_time=None,
                        choice_index=index,
                        options=call.options,
                    )
                    for index in range(call.n)
                )
            )
        )

    async def die(self) -> None:
        """End without returning anything, like a killed process."""
        task = self.plugin._exchange._task
        assert task is not None
        task.cancel()
        await asyncio.wait([task])

    def metric(self, name: str) -> float:
        """The value of a metric, with its labels as Prometheus writes them; 0 without a line."""
        for line in self.context.metrics.render().decode().splitlines():
            if line.startswith(f"plugin_{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0


def new_server(**options: Any) -> Server:
    context = PluginContext(config=EngineConfig())
    return Server(SharedLimits(context, SharedLimitsOptions(**options)), context)


@asynccontextmanager
async def running(count: int, **options: Any) -> AsyncIterator[list[Server]]:
    """Some servers with the same options. A burst of 50 hours: in a test, nothing is refilled."""
    options = {"burst": 180_000.0} | options
    async with AsyncExitStack() as stack:
        servers = [new_server(**options) for _ in range(count)]
        for server in servers:
            await stack.enter_async_context(server.plugin.lifespan(cast(Any, None)))
        yield servers


async def until(is_reached: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until the answer is true; fails after 20 seconds."""
    async with asyncio.timeout(20):
        while not await is_reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def quota(amount: float) -> float:
    """The amount per minute of a bucket that holds `amount`."""
    return amount / 3000
