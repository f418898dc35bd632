"""Starts executors with worker processes of the simulated model."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

from tokenmill.backends.execution.workers.executor import MultiProcess
from tokenmill.core.config import EngineConfig
from tokenmill.core.processes.channels.frames import receive, send
from tokenmill.testing.conformance.executor.worker import make_spec


def start(load_rank: str, size: int = 1, *, pipeline_parallel_size: int = 1) -> MultiProcess:
    """An executor with `size` workers per stage, which load their model with `load_rank`."""
    config = EngineConfig(tensor_parallel_size=size, pipeline_parallel_size=pipeline_parallel_size)
    return MultiProcess.start(replace(make_spec(), load_rank=load_rank, config=config))


def engine(control: socket.socket) -> None:
    """An engine's process: report the worker's process id, and hang."""
    executor = start(make_spec().load_rank)
    send(control, str(executor.pids[0]).encode())
    receive(control)
    time.sleep(600)
