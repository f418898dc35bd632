"""Measures the parts of a running engine's steps, by wrapping its methods from outside."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tokenmill.assembly import build_parts
from tokenmill.backends.cpu.decoder_call import DecoderCall, Phase
from tokenmill.backends.state.input_batch import build_input_batch
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import Progress
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.local_engine import EngineParts, local_engine

_PHASE_ROWS = {
    Phase.EMBED: "model: embedding",
    Phase.NORM: "model: norms",
    Phase.QKV: "model: q, k, v",
    Phase.ROTATE_AND_WRITE: "model: rotation, KV write",
    Phase.ATTENTION: "model: attention",
    Phase.ATTENTION_OUTPUT: "model: attention output",
    Phase.GATE_UP: "model: gate, up",
    Phase.DOWN: "model: down",
    Phase.LOGITS: "model: logits",
    Phase.WAIT: "model: waiting for threads",
}
DEVICE_ROWS = (
    "input batch",
    *_PHASE_ROWS.values(),
    "model: rest",
    "sampling",
    "runner: rest",
    "idle",
)
"""The parts of a step; their times add up to it."""
LOOP_ROWS = (
    "plan: schedule, blocks",
    "commit",
    "texts, waking callers",
    "callers, asyncio: rest",
    "of all this, hooks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one step, averaged over a round."""

    wall: float
    parts: dict[str, float]
    """Seconds by row of the tables."""


class Watch:
    """Sums the seconds of calls between `start` and `stop`. Call both from the event loop."""

    def __init__(self) -> None:
        self.is_running = False
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._num_steps = 0
        self._begun = 0.0
        self._loop_begun = 0.0
        self._hooks_begun = 0.0
        self._engine: EngineShell | None = None
        self._decoder_call: DecoderCall | None = None
        self._phases_begun: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time is added under this name."""

        def call(*args: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                self._seconds[name] += time.perf_counter() - begun
                self._num_steps += name == "run"

        return call

    def attach_to_parts(self, parts: EngineParts) -> None:
        """Wrap the methods that compute, before the engine starts. Uses private names."""
        executor: Any = parts.executor
        runner = executor._runner
        model = runner._model
        if isinstance(model, DecoderCall):
            self._decoder_call = model
            model.start_timing()
        model.logits = self.timed("model", model.logits)
        runner._sample = self.timed("sample", runner._sample)
        executor.run = self.timed("run", executor.run)

    def attach_to_engine(self, engine: Any) -> None:
        """Wrap the methods that plan and deliver, after the engine's start. Uses private names."""
        self._engine = engine
        loop = engine.running._loop
        loop.core.plan = self.timed("plan", loop.core.plan)
        loop.core.commit = self.timed("commit", loop.core.commit)
        loop._turns._deliver = self.timed("deliver", loop._turns._deliver)

    def start(self) -> None:
        self._seconds.clear()
        self._num_steps = 0
        self._phases_begun = self._phase_seconds()
        self._hooks_begun = self._hook_seconds()
        self._loop_begun = time.thread_time()
        self._begun = time.perf_counter()
        self.is_running = True

    def stop(self) -> StepTimes:
        """End the measurement that `start` began, and return it."""
        self.is_running = False
        wall = time.perf_counter() - self._begun
        loop = time.thread_time() - self._loop_begun
        hooks = self._hook_seconds() - self._hooks_begun
        phases = {row: s - self._phases_begun[row] for row, s in self._phase_seconds().items()}
        took = self._seconds
        inside = took["batch"] + took["model"] + took["sample"]
        outside = took["plan"] + took["commit"] + took["deliver"]
        parts = {
            "input batch": took["batch"],
            **phases,
            "model: rest": took["model"] - sum(phases.values()),
            "sampling": took["sample"],
            "runner: rest": took["run"] - inside,
            "idle": wall - took["run"],
            "plan: schedule, blocks": took["plan"],
            "commit": took["commit"],
            "texts, waking callers": took["deliver"],
            "callers, asyncio: rest": max(0.0, loop - outside),
            "of all this, hooks": hooks,
        }
        steps = max(self._num_steps, 1)
        return StepTimes(wall=wall / steps, parts={k: v / steps for k, v in parts.items()})

    def _phase_seconds(self) -> dict[str, float]:
        """Seconds of the model's phases; all zero unless the model is one native call."""
        call = self._decoder_call
        timing = dict.fromkeys(Phase, 0.0) if call is None else call.read_timing()
        return {row: timing[phase] for phase, row in _PHASE_ROWS.items()}

    def _hook_seconds(self) -> float:
        assert self._engine is not None
        return sum(stats.seconds for stats in self._engine.hook_stats())


@asynccontextmanager
async def open_watched_engine(
    args: argparse.Namespace, max_num_seqs: int, max_len: int
) -> AsyncIterator[tuple[EngineShell, Watch]]:
    """An engine for `max_num_seqs` requests of `max_len` tokens, with a Watch. A whole prompt fits
    into one step."""
    watch = Watch()

    def build(config: EngineConfig, progress: Progress) -> EngineParts:
        parts = build_parts(config, progress)
        watch.attach_to_parts(parts)
        return parts

    config = EngineConfig(
        model=args.model,
        device="cpu",
        dtype=args.dtype,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(512, max_len),
        num_gpu_blocks_override=max_num_seqs * (max_len // 16 + 4),
        enable_prefix_caching=False,
    )
    timed = watch.timed("batch", build_input_batch)
    with patch("tokenmill.backends.running.runner.build_input_batch", timed):
        async with local_engine(config, build) as engine:
            watch.attach_to_engine(engine)
            yield engine, watch
