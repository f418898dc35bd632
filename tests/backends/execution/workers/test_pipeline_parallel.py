"""Several stages compute one model, and give the same tokens as one process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tests.core.processes.test_child import wait_until_gone
from tokenmill import AsyncEngine, SamplingParams
from tokenmill.backends.execution.workers.answers import WorkerStepError
from tokenmill.backends.execution.workers.executor import MultiProcess
from tokenmill.core.errors import DeviceError
from tokenmill.core.interfaces import Executor
from tokenmill.testing.conformance.executor.worker import SEED, VOCAB_SIZE, decode_plan, prompt_plan
from tokenmill.testing.simulated.executor import expected_tokens

from . import linked_targets
from .starting import start
from .test_faults import target_of
from .test_same_tokens import answers_of
from .test_tensor_parallel import UNEVEN

WINDOWED = replace(TARGET, sliding_window=24)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.check)])
def test_tokens_are_the_same_with_a_draft_model_swaps_and_chunks(tmp_path: Path, size: int) -> None:
    """The model drafts for itself, so that many drafts are accepted."""
    model = write_model(tmp_path / "m", TARGET, 1)
    options = {"speculative_model": str(model), "num_speculative_tokens": 3}
    wanted = asyncio.run(answers_of(model, **options))
    found = asyncio.run(answers_of(model, **options, pipeline_parallel_size=size))
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in wanted]


@pytest.mark.check
@pytest.mark.parametrize("options", [{}, {"speculative_method": "ngram"}], ids=["plain", "ngram"])
def test_tokens_are_the_same_with_a_window_in_all_layers(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    model = write_model(tmp_path / "m", WINDOWED, 1)
    wanted = asyncio.run(answers_of(model, **options))
    found = asyncio.run(answers_of(model, **options, pipeline_parallel_size=2))
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in wanted]


@pytest.mark.check
@pytest.mark.parametrize("options", [{}, {"speculative_method": "ngram"}], ids=["plain", "ngram"])
def test_tokens_are_the_same_with_two_ranks_in_each_of_two_stages(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    model = write_model(tmp_path / "m", UNEVEN, 1)
    wanted = asyncio.run(answers_of(model, **options))
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    found = asyncio.run(answers_of(model, **options, **sizes))
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in wanted]


@pytest.mark.check  # test_stage_call.py has the native call, without ranks
@pytest.mark.parametrize("size", [1, 2])
def test_stages_in_bfloat16_have_the_logprobs_of_one_stage_to_the_last_bit(
    tmp_path: Path, size: int
) -> None:
    """A step of a stage is one native call there."""
    model = str(write_model(tmp_path / "m", UNEVEN, 1))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, prompt_logprobs=0)

    async def answer(num_stages: int) -> Any:
        options = {"device": "cpu", "dtype": "bfloat16", "num_gpu_blocks_override": 64}
        sizes = {"tensor_parallel_size": size, "pipeline_parallel_size": num_stages}
        async with AsyncEngine(model, max_num_batched_tokens=64, **options, **sizes) as engine:
            outputs = [output async for output in engine.generate(range(1, 90), params)]
        return outputs[-1].outputs[0].token_ids, outputs[0].prompt_logprobs

    tokens, logprobs = asyncio.run(answer(1))
    assert len(tokens) == 20 and len(logprobs) == 89
    assert asyncio.run(answer(3)) == (tokens, logprobs)


@pytest.fixture
def executor() -> Iterator[MultiProcess]:
    found = start(target_of(linked_targets.staged), pipeline_parallel_size=2)
    yield found
    found.close()
    wait_until_gone(list(found.pids))


def test_a_stage_computes_a_step_after_the_stage_before(executor: MultiProcess) -> None:
    began = time.monotonic()
    result = executor.launch(prompt_plan("a", tuple(range(1, 9)), 1)).result()
    [first, second] = result.rank_times
    assert began <= first[0] <= first[1] and first[0] <= second[0] <= second[1] <= time.monotonic()


def test_a_step_that_raises_in_one_stage_leaves_all_stages_in_step(executor: MultiProcess) -> None:
    check_steps_after_failures(executor)


def check_steps_after_failures(executor: Executor) -> None:
    """A step raises in the first stage, and then one in the second. `executor`: of `staged`."""
    assert executor.info.num_stages == 2
    wanted = expected_tokens((1, 2), 3, SEED, VOCAB_SIZE)
    found = [executor.launch(prompt_plan("a", (1, 2), 1)).result().token_ids[0][0]]
    for step_id, (token, rank) in enumerate(
        ((linked_targets.EARLY, 0), (linked_targets.LATE, 1)), 1
    ):
        plans = [
            prompt_plan("b", (token,), 2 * step_id, block=8),
            decode_plan("a", 1 + step_id, 2 * step_id + 1),
        ]
        failing, other = [executor.launch(plan) for plan in plans]
        with pytest.raises(WorkerStepError, match=f"worker {rank}: RuntimeError: planted"):
            failing.result()
        found += other.result().token_ids[0]
    assert found == wanted
    assert executor.health() is None


@pytest.mark.check
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "hangs")],
)
def test_a_lost_stage_ends_the_steps_of_all_stages(
    executor: MultiProcess, number: signal.Signals, reason: str, rank: int
) -> None:
    assert executor.launch(prompt_plan("a", (1, 2), 1)).result().step_id == 1
    os.kill(executor.pids[rank], number)
    plans = [decode_plan("a", 2, 2), prompt_plan("b", (1, 2), 3, block=8)]
    for pending in [executor.launch(plan) for plan in plans]:
        with pytest.raises(DeviceError, match=f"worker {rank} {reason}"):
            pending.result()
    health = executor.health()
    assert health is not None and health.startswith(f"worker {rank} {reason}")
