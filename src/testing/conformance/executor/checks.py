"""The checks of the suite for executors."""

from __future__ import annotations

from collections.abc import Sequence

from ....backends.execution.base import ExecutorSpec
from ....core.config import EngineConfig
from ....core.interfaces import Executor, no_progress
from ....core.plan import Grant, RequestStart, StepPlan
from ....core.requests.sampling_params import SamplingParams
from ...simulated.executor import expected_tokens
from .worker import (
    BLOCK_SIZE,
    FAILS,
    LOAD_RANK,
    VOCAB_SIZE,
    identify_simulated,
    load_simulated,
)

LONG_PROMPT = 300_000
"""Tokens, about a megabyte in a message."""
NUM_STAGES = 2
"""Stages of the model, for executors that can divide one."""
SEED = 5


def make_spec(config: EngineConfig | None = None) -> ExecutorSpec:
    """The simulated model, as executors get it."""
    return ExecutorSpec(
        config=config or EngineConfig(),
        progress=no_progress,
        load=load_simulated,
        load_rank=LOAD_RANK,
        identify=identify_simulated,
    )


def check_info(executor: Executor) -> None:
    """The info is the model's, and nothing is wrong with a new executor."""
    assert executor.info == load_simulated(no_progress).info
    assert executor.health() is None


def check_order(executor: Executor) -> None:
    """Two steps are open at once; the second one uses the token that the first one samples."""
    prompt = (1, 2, 3)
    pending = [
        executor.launch(prompt_plan("a", prompt, 1)),
        executor.launch(decode_plan("a", 3, 2)),
    ]
    found = [one.result() for one in pending]
    assert [result.step_id for result in found] == [1, 2]
    _check_tokens([one.token_ids[0][0] for one in found], prompt)


def check_stages(executor: Executor) -> None:
    """Each stage has a plan of another request; then all plans continue."""
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
        for tokens, pending in zip(found, [executor.launch(plan) for plan in plans], strict=True):
            tokens.append(pending.result().token_ids[0][0])
    for tokens, prompt in zip(found, prompts, strict=True):
        _check_tokens(tokens, prompt)


def check_failures(executor: Executor) -> None:
    """The step between two others raises."""
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


def check_long_prompts(executor: Executor) -> None:
    """The token after a prompt depends on all of it."""
    prompt = tuple(range(1, 900)) * (LONG_PROMPT // 899)
    found = executor.launch(prompt_plan("a", prompt, 1)).result()
    _check_tokens([found.token_ids[0][0]], prompt)


def _check_tokens(found: Sequence[int], prompt: Sequence[int]) -> None:
    wanted = expected_tokens(prompt, len(found), SEED, VOCAB_SIZE)
    assert list(found) == wanted, f"computed {list(found)} instead of {wanted}"


def prompt_plan(
    engine_id: str, prompt: tuple[int, ...], step_id: int, *, block: int = 0
) -> StepPlan:
    num_blocks = -(-(len(prompt) + 8) // BLOCK_SIZE)
    start = RequestStart(
        engine_id=engine_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling_params=SamplingParams(),
        seed=SEED,
        stop_token_ids=(),
    )
    grant = Grant(
        engine_id=engine_id,
        start=0,
        num_tokens=len(prompt),
        new_block_ids=(tuple(range(block, block + num_blocks)),),
        samples=True,
    )
    return StepPlan(step_id=step_id, starts=(start,), grants=(grant,))


def decode_plan(engine_id: str, start: int, step_id: int) -> StepPlan:
    grant = Grant(engine_id=engine_id, start=start, num_tokens=1, new_block_ids=(), samples=True)
    return StepPlan(step_id=step_id, grants=(grant,))
