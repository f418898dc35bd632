"""A real uvicorn on a free loopback port, in a thread, over an engine with or without a model."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import httpx
import uvicorn

from tokenmill.api.listening import Address, listening
from tokenmill.api.server import ServeOptions, make_server
from tokenmill.api.serving.context import ServerSettings
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import GrammarChecker
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor
from tokenmill.testing.toy_tokenizer import ToyTokenizer

PATIENCE = 60.0
"""Seconds that a test waits for something that takes milliseconds on an idle machine."""


class SteeredExecutor(SimulatedExecutor):
    """Each step takes `step_seconds`, waits for `gate`, and raises `failure` if there is one."""

    def __init__(self, *, num_blocks: int = 256, step_seconds: float = 0.0) -> None:
        super().__init__(num_blocks=num_blocks, block_size=4)
        self.step_seconds = step_seconds
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self.step_seconds)
        self.gate.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        return super().run(plan)


def toy_engine(
    executor: SimulatedExecutor | None = None,
    extra: Iterable[object] = (),
    tokenizer: ToyTokenizer | None = None,
    grammars: GrammarChecker | None = None,
    **options: Any,
) -> EngineShell:
    """An engine without a model: a character is a token, and 256 blocks of 4 tokens. `extra` are
    plugins."""

    def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineParts:
        return EngineParts(
            executor=executor or SteeredExecutor(),
            tokenizer=tokenizer or ToyTokenizer(),
            plugins=PluginHost.load(config, extra=extra),
            grammars=grammars,
        )

    return local_engine(EngineConfig(disable_log_stats=True, **options), build)


class Served:
    """What a test knows of its server."""

    engine: Any
    """An engine in this process, or in one of its own."""

    def __init__(self, engine: EngineShell, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.url = url
        self.headers: dict[str, str] = {}
        """Headers with which `wait_until` asks."""
        self.loop = loop

    def client(self, **options: Any) -> httpx.Client:
        options.setdefault("headers", {}).setdefault("Content-Type", "application/json")
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, **options)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something of the engine on its event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def wait_until(self, is_reached: Callable[[Any], bool]) -> None:
        """Poll /load until it is as wanted."""
        with self.client(headers=dict(self.headers)) as client:
            end = time.monotonic() + PATIENCE
            while not is_reached(load := client.get("/load").json()):
                assert time.monotonic() < end, f"still {load}"
                time.sleep(0.01)

    def wait_idle(self) -> None:
        """No request is left and no block is held."""
        self.wait_until(
            lambda load: (
                not load["num_running"] and not load["num_waiting"] and not load["kv_cache_usage"]
            )
        )


@contextlib.contextmanager
def serve_engine(
    engine: EngineShell, *, address: Address | None = None, **changes: Any
) -> Iterator[Served]:
    """Start the engine and serve it; both end with the block."""
    address = address or Address(port=0)
    settings = ServerSettings(**{"is_local": True} | changes)
    started: list[Served] = []
    errors: list[BaseException] = []
    is_up, end = threading.Event(), threading.Event()

    async def main() -> None:
        with listening(address) as sock:
            async with engine:
                server = make_server(engine, ServeOptions(settings=settings, address=address))
                await serve(server, sock)

    async def serve(server: uvicorn.Server, sock: socket.socket) -> None:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        started.append(Served(engine, address.url(sock), asyncio.get_running_loop()))
        is_up.set()
        await asyncio.to_thread(end.wait)
        server.should_exit = server.force_exit = True
        await serving

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)
        finally:
            is_up.set()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    is_up.wait()
    try:
        if started:
            yield started[0]
    finally:
        end.set()
        thread.join()
    if errors:
        raise errors[0]
