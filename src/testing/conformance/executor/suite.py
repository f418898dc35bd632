"""The suite for executors: they compute plans of a simulated model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from ....backends.execution.base import ExecutorProvider
from ....core.config import EngineConfig
from ....core.interfaces import Executor, no_progress
from ...simulated.executor import expected_tokens
from ..suites import suite
from .worker import FAILS, SEED, VOCAB_SIZE, decode_plan, load_simulated, make_spec, prompt_plan

LONG_PROMPT = 300_000
"""Tokens, about a megabyte in a message."""
NUM_STAGES = 2
"""Stages of the model, for executors that can divide one."""


def check_it_describes_the_loaded_model(distributed_executor_backend: ExecutorProvider) -> None:
    """`info` is the model's, and `health` finds nothing wrong with a new executor."""
    with _running(distributed_executor_backend) as executor:
        assert executor.info == load_simulated(no_progress).info
        assert executor.health() is None


def check_steps_are_computed_in_the_order_of_their_launch(
    distributed_executor_backend: ExecutorProvider,
) -> None:
    """Two steps are open at once; the second one uses the token that the first one samples."""
    with _running(distributed_executor_backend) as executor:
        prompt = (1, 2, 3)
        pending = [
            executor.launch(prompt_plan("a", prompt, 1)),
            executor.launch(decode_plan("a", 3, 2)),
        ]
        found = [one.result() for one in pending]
        assert [result.step_id for result in found] == [1, 2]
        _check_tokens([one.token_ids[0][0] for one in found], prompt)


def check_every_stage_computes_a_plan_of_other_requests(
    distributed_executor_backend: ExecutorProvider,
) -> None:
    """With `pipeline_parallel_size`, `info.num_stages` plans are launched before the first is
    awaited: each stage has a plan of another request. Executors may refuse the size."""
    with _running(distributed_executor_backend, pipeline_parallel_size=NUM_STAGES) as executor:
        num_stages = executor.info.num_stages
        assert num_stages == NUM_STAGES, f"info.num_stages is {num_stages}, not {NUM_STAGES}"
        prompts = [(1, 2, 3 + number) for number in range(num_stages)]
        found: list[list[int]] = [[] for _ in prompts]
        for first in (1, 1 + num_stages, 1 + 2 * num_stages):
            plans = [
                prompt_plan(str(number), prompt, first + number, block=number)
                if first == 1
                else decode_plan(str(number), 2 + len(found[number]), first + number)
                for number, prompt in enumerate(prompts)
            ]
            for tokens, pending in zip(
                found, [executor.launch(plan) for plan in plans], strict=True
            ):
                tokens.append(pending.result().token_ids[0][0])
        for tokens, prompt in zip(found, prompts, strict=True):
            _check_tokens(tokens, prompt)


def check_a_step_that_raises_ends_only_its_own_requests(
    distributed_executor_backend: ExecutorProvider,
) -> None:
    """`result` raises for the step that fails, and the steps before and after it have results."""
    with _running(distributed_executor_backend) as executor:
        plans = [
            prompt_plan("a", (1, 2), 1),
            prompt_plan("b", (FAILS,), 2, block=1),
            decode_plan("a", 2, 3),
        ]
        first, second = executor.launch(plans[0]), executor.launch(plans[1])
        tokens = [first.result().token_ids[0][0]]
        try:
            second.result()
        except Exception as error:
            assert "planted" in str(error), f"the error says nothing of its cause: {error!r}"
        else:
            raise AssertionError("a step that raises must raise in `result`")
        assert executor.health() is None, "a failed step is no reason to stop"
        tokens.append(executor.launch(plans[2]).result().token_ids[0][0])
        _check_tokens(tokens, (1, 2))


def check_long_prompts_arrive_whole(distributed_executor_backend: ExecutorProvider) -> None:
    """The token after a prompt depends on all of it: a plan has no maximum size."""
    with _running(distributed_executor_backend) as executor:
        prompt = tuple(range(1, 900)) * (LONG_PROMPT // 899)
        found = executor.launch(prompt_plan("a", prompt, 1)).result()
        _check_tokens([found.token_ids[0][0]], prompt)


@suite
class ExecutorConformance:
    """The suite for an executor.

    Subclass it as Test..., with a fixture `distributed_executor_backend` that returns the
    executor's class, or an object that is used like one.
    """


@contextmanager
def _running(provider: ExecutorProvider, **options: Any) -> Iterator[Executor]:
    """An executor that has loaded the simulated model. If it refuses, the test is skipped."""
    spec = make_spec(EngineConfig(**options))
    if reasons := provider.reasons_against(spec):
        pytest.skip(f"refused: {'; '.join(reasons)}")
    with closing(provider(spec)) as executor:
        yield executor


def _check_tokens(found: Sequence[int], prompt: Sequence[int]) -> None:
    wanted = expected_tokens(prompt, len(found), SEED, VOCAB_SIZE)
    assert list(found) == wanted, f"computed {list(found)} instead of {wanted}"
