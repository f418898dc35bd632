"""Hangs are found, and a machine with too much work is not taken for one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product

import pytest

from tests.api.test_hanging_steps import check_hang
from tests.api.toy_process import STEP_FAULT, toy_process
from tokenmill.core.requests.sampling_params import SamplingParams

LOAD_PER_CPU = 4
NUM_STEPS = 10_000
TOKENS = 1000
"""Tokens of a request: each is a step."""


@contextmanager
def busy_machine() -> Iterator[None]:
    """Keep all CPUs busy."""
    with ExitStack() as stack:
        for _ in range(LOAD_PER_CPU * (os.cpu_count() or 1)):
            program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(program.wait)
            stack.callback(program.kill)
        yield


@pytest.mark.parametrize("fault", [" ".join(one) for one in product("SLH", ("1", "2", "500"))])
def test_a_hang_is_found_in_time(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEP_FAULT, fault)
    asyncio.run(check_hang())


def test_on_a_busy_machine_no_step_of_ten_thousand_is_taken_for_a_hang(
    record_property: Callable[[str, object], None],
) -> None:
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)

    async def run() -> None:
        async with toy_process(max_model_len=2 * TOKENS, num_gpu_blocks_override=1024) as engine:
            [supervisor] = engine.running.replicas.supervisors
            longest = 0.0
            for number in range(NUM_STEPS // TOKENS):
                async for _ in engine.generate(f"story {number}", params):
                    longest = max(longest, engine.load().stalled_for)
            assert supervisor.num_restarts == 0
            record_property("longest stall, seconds without waiting", round(longest, 2))

    with busy_machine():
        asyncio.run(run())
