"""Program: `tokenmill serve` with an engine without a model that compiles a small kernel library.

The library comes from the cache like the real ones, which take a minute to compile.
"""

from __future__ import annotations

import platform
import socket
import sys
from pathlib import Path
from typing import Any

from tests.api.toy_process import make_engine
from tokenmill.api import cli, server
from tokenmill.backends.cpu.native.build import Toolchain, compile_product, find_compiler, products
from tokenmill.backends.machine.compiling import BuildError, build_once
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.registry import Replica
from tokenmill.core.interfaces import Progress
from tokenmill.core.log import get_logger
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.supervised.client import supervised_engine
from tokenmill.core.supervised.engine_process import run_engine
from tokenmill.testing.toy_tokenizer import ToyTokenizer

LIBRARY = "libkernels.so"
STAGE = "compiling CPU kernels"
smallest = products()[0]


def make_compiling_engine(
    config: EngineConfig, progress: Progress, replica: Replica
) -> EngineShell:
    try:
        compiler = find_compiler()
        tools = Toolchain(compiler=compiler, machine=platform.machine())

        def compile_library(folder: Path) -> Path:
            return compile_product(smallest, tools, folder, STAGE, progress)

        build_once(LIBRARY, compile_library)
    except BuildError as error:
        get_logger("model").warning("cpu_kernels_not_built", error=str(error), instead="torch")
    return make_engine(config, progress, replica)


def run(control: socket.socket, logs: socket.socket) -> None:
    """The target of the engine's process."""
    run_engine(control, logs, make_compiling_engine)


def build(config: EngineConfig, progress: Progress, **options: Any) -> EngineShell:
    return supervised_engine(
        config,
        target=f"{__spec__.name if __spec__ else __name__}:run",
        load_tokenizer=lambda config: ToyTokenizer(),
        progress=progress,
        **options,
    )


if __name__ == "__main__":
    server.build_supervised_engine = build
    sys.exit(cli.main(["serve", "--port", "0", *sys.argv[1:]]))
