"""A server with the default model's tokenizer and an engine that computes nothing.

It answers a hundred times as many requests as one with a model. Program: it logs its address.
"""

from __future__ import annotations

import asyncio
import socket

from tokenmill.api.listening import Address, listening
from tokenmill.api.server import ServeOptions, configure_logging, make_server
from tokenmill.api.serving.context import ServerSettings
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.default_model import find_default_model
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.registry import ONLY_REPLICA, Replica
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import Progress, Tokenizer
from tokenmill.core.log import get_logger
from tokenmill.core.processes.free_memory import share_heaps
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.core.supervised.client import supervised_engine
from tokenmill.core.supervised.engine_process import run_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor

VOCAB_SIZE = 49_152
MAX_MODEL_LEN = 2048
NAME = "simulated"


def make_engine(
    config: EngineConfig, progress: Progress, replica: Replica = ONLY_REPLICA
) -> EngineShell:
    def build(config: EngineConfig, progress: Progress) -> EngineParts:
        executor = SimulatedExecutor(
            num_blocks=1024, block_size=16, vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN
        )
        plugins = PluginHost.load(config, replica=replica)
        return EngineParts(executor=executor, tokenizer=tokenizer_of(config), plugins=plugins)

    return local_engine(config, build, progress)


def run(control: socket.socket, logs: socket.socket) -> None:
    """The target of the engine's process."""
    run_engine(control, logs, make_engine)


def tokenizer_of(config: EngineConfig) -> Tokenizer:
    return load_tokenizer(find_default_model())


async def serve() -> None:
    engine = supervised_engine(
        EngineConfig(served_model_name=NAME, disable_log_stats=True),
        target="tests.soak.no_model_server:run",
        load_tokenizer=tokenizer_of,
    )
    address = Address(port=0)
    with listening(address) as sock:
        async with engine:
            options = ServeOptions(settings=ServerSettings(is_local=True), address=address)
            get_logger("api").info("listening", address=address.url(sock))
            await make_server(engine, options).serve(sockets=[sock])


if __name__ == "__main__":
    configure_logging("info", as_json=True)
    share_heaps()
    asyncio.run(serve())
