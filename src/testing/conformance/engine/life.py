"""Runs a whole engine for a short time, with its asyncio shell, on the simulated executor."""

from __future__ import annotations

import asyncio

from ....core.config import EngineConfig
from ....core.host.plugin_host import PluginHost
from ....core.requests.sampling_params import SamplingParams
from ....core.shell.engine_shell import EngineShell
from ....core.shell.local_engine import EngineParts, local_engine
from ...simulated.executor import SimulatedExecutor
from ...toy_tokenizer import ToyTokenizer

_TIMEOUT = 30.0


async def live_through(plugins: PluginHost) -> None:
    """Run an engine with these plugins: start, serve, preempt, abort, read metrics, drain, close.

    Raises PluginError if a plugin's lifespan cannot be entered, TimeoutError if the engine hangs.
    """
    async with asyncio.timeout(_TIMEOUT):
        async with simulated_engine(plugins) as engine:
            await asyncio.gather(*(_serve(engine, f"prompt number {i}") for i in range(6)))
            async for _ in engine.generate("given up at once", SamplingParams(max_tokens=20)):
                break
            engine.render_metrics()
            await engine.drain()


def simulated_engine(plugins: PluginHost) -> EngineShell:
    """An engine with these plugins, not started yet."""
    parts = EngineParts(
        executor=SimulatedExecutor(num_blocks=12, block_size=4),
        tokenizer=ToyTokenizer(),
        plugins=plugins,
    )
    return local_engine(EngineConfig(max_num_seqs=4), lambda *_: parts)


async def _serve(engine: EngineShell, prompt: str) -> None:
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=16)):
        pass
