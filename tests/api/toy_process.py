"""An engine without a model in a process of its own, which a prompt can make fail."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import Refusal
from tokenmill.core.contract.registry import ONLY_REPLICA, PluginContext, Registry, Replica
from tokenmill.core.errors import DeviceError, UnavailableError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import Progress
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.regions import Region, Regions
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.core.supervised.client import supervised_engine
from tokenmill.core.supervised.engine_process import run_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor
from tokenmill.testing.toy_tokenizer import ToyTokenizer

STEP_SECONDS = 0.005
LOAD_SECONDS = "TOY_LOAD_SECONDS"
"""Environment variable: seconds that the next engines take to load."""
START_FAULT = "TOY_START_FAULT"
"""Environment variable: the key in ON_DEVICE of a fault of engines that load their model."""
STEP_FAULT = "TOY_STEP_FAULT"
"""Environment variable: the key in ON_DEVICE of a fault, and the number of the step that has it."""
NUM_BLOCKS = "TOY_NUM_BLOCKS"
"""Environment variable: number of KV blocks of the next engines."""
MEDIA_BYTES = "TOY_MEDIA_BYTES"
"""Environment variable: size of the encoder cache of the next engines."""
STOP_HANGS = "TOY_STOP_HANGS"
"""Environment variable of engines whose plugin hangs when they stop."""
LEAVES = "TOY_LEAVES"
"""Environment variable of the engines that a request of the user "leave there" ends."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    os._exit(7)


def leave_there() -> None:
    if LEAVES in os.environ:
        leave()


def loop() -> None:
    while True:
        pass


def crash() -> None:
    ctypes.string_at(0)


def hang() -> None:
    threading.Event().wait()


def write() -> None:
    print("a plugin \x1b[31mprints\x1b[0m")
    os.write(1, b"0 %\r100 %\n")
    os.write(2, b"native code writes\n")


def count_objects() -> None:
    """Fail if the garbage collector looks at more than an engine makes while it computes."""
    assert len(gc.get_objects()) < 20_000


def lose_device() -> None:
    raise DeviceError("the device fell off the bus")


def lose_worker() -> None:
    raise DeviceError("a worker was killed", from_outside=True)


def find_no_room() -> None:
    raise UnavailableError("no room")


IN_PLUGIN: dict[str | None, Callable[[], None]] = {
    "loop": loop,
    "leave": leave,
    "leave there": leave_there,
    "crash": crash,
    "write": write,
    "count objects": count_objects,
}
"""Faults in a hook, on the engine's event loop, by the user of the request."""
ON_DEVICE: dict[str, Callable[[], None]] = {
    "K": kill,
    "S": stop,
    "C": crash,
    "H": hang,
    "L": loop,
    "E": lose_device,
    "O": lose_worker,
    "U": find_no_room,
}
"""Faults in the step that computes the prompt, by its first character."""


class FaultyPlugin:
    """Fails while it admits the request that asks for it, and shows its replica in metrics."""

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.OBSERVER, "number", self._show)

    def _show(self, context: PluginContext) -> None:
        for name in ("index", "count"):
            context.metrics.gauge(name, "Of the replica.").set(getattr(context.replica, name))

    @hookimpl
    def admit(self, request: Any) -> Refusal | None:
        fault = IN_PLUGIN.get(request.options.user)
        if fault is not None:
            fault()
        return None

    @hookimpl
    def on_stopping(self) -> None:
        if STOP_HANGS in os.environ:
            hang()


class FaultyExecutor(SimulatedExecutor):
    """Fails in the step of the prompt that asks for it, or in the step with the number of
    STEP_FAULT."""

    num_steps = 0

    def run(self, plan: StepPlan) -> StepResult:
        began = time.monotonic()
        time.sleep(STEP_SECONDS)
        self.num_steps += 1
        fault, _, number = os.environ.get(STEP_FAULT, "").partition(" ")
        if fault and self.num_steps == int(number):
            ON_DEVICE[fault]()
        for start in plan.starts:
            fault = ON_DEVICE.get(chr(start.token_ids[0]))
            if fault is not None:
                fault()
        result = super().run(plan)
        if not plan.measures_regions:
            return result
        region = Region("toy", None, began, time.monotonic())
        return replace(result, regions=(Regions.of([region]),))


def make_engine(
    config: EngineConfig, progress: Progress, replica: Replica = ONLY_REPLICA
) -> EngineShell:
    def build(config: EngineConfig, progress: Progress) -> EngineParts:
        progress("loading the toy", 0.0)
        time.sleep(float(os.environ.get(LOAD_SECONDS, "0")))
        if START_FAULT in os.environ:
            ON_DEVICE[os.environ[START_FAULT]]()
        progress("loading the toy", 1.0)
        num_blocks = int(os.environ.get(NUM_BLOCKS, config.num_gpu_blocks_override or 256))
        return EngineParts(
            executor=FaultyExecutor(
                num_blocks=num_blocks,
                block_size=4,
                media_bytes=int(os.environ.get(MEDIA_BYTES, "0")),
            ),
            tokenizer=ToyTokenizer(),
            plugins=PluginHost.load(config, extra=[FaultyPlugin()], replica=replica),
        )

    return local_engine(config, build, progress)


def run(control: socket.socket, logs: socket.socket) -> None:
    """The target of the child process."""
    run_engine(control, logs, make_engine)


def toy_process(**options: Any) -> EngineShell:
    """An engine process that was not started; `options` of SupervisedEngine and of EngineConfig."""
    names = ("stall_timeout", "max_restarts", "places", "lost_steps")
    own = {name: options.pop(name) for name in names if name in options}
    size = len(own.get("places", (None,)))
    config = EngineConfig(data_parallel_size=size, disable_log_stats=True, **options)
    return toy_engine(config, **own)


def toy_engine(config: EngineConfig, **own: Any) -> EngineShell:
    """An engine of toys in a process of its own, not started."""
    return supervised_engine(
        config,
        target=f"{__name__}:run",
        load_tokenizer=lambda config: ToyTokenizer(),
        **own,
    )


async def until(is_reached: Callable[[], object]) -> None:
    """Wait until something is reached, which has no event."""
    while not is_reached():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
