"""Program: `tokenmill serve` with engines without a model. Its arguments are the flags."""

from __future__ import annotations

import sys
from typing import Any

from tokenmill.api import cli, server
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import Progress
from tokenmill.core.shell.engine_shell import EngineShell

from .toy_process import make_engine, toy_engine


def build_toy(config: EngineConfig, progress: Progress, **options: Any) -> EngineShell:
    return toy_engine(config, progress=progress, **options)


def build_toy_here(config: EngineConfig, progress: Progress, **options: Any) -> EngineShell:
    return make_engine(config, progress)


if __name__ == "__main__":
    server.build_supervised_engine, server.build_engine = build_toy, build_toy_here
    sys.exit(cli.main(["serve", "--port", "0", *sys.argv[1:]]))
