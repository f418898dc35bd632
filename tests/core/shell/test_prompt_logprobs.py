"""Requests that generate nothing, and the memory of log-probabilities of prompts."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tokenmill.core.errors import InvalidRequestError, OverloadedError
from tokenmill.core.outputs import FinishReason
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams
from tokenmill.core.shell import checking
from tokenmill.core.shell.steps import loop
from tokenmill.testing.simulated.executor import SimulatedExecutor

from .test_engine_shell import PROMPT, collect, in_event_loop, make_engine

NOTHING = SamplingParams(max_tokens=0)


@pytest.mark.parametrize("kind", OutputKind)
@pytest.mark.parametrize("n", [1, 3])
@in_event_loop
async def test_max_tokens_0_computes_the_prompt_alone(kind: OutputKind, n: int) -> None:
    async with make_engine(max_num_batched_tokens=4, max_num_seqs=4) as engine:
        prompt = list(range(50))
        outputs = await collect(engine, prompt, max_tokens=0, n=n, output_kind=kind)
        found = [c for output in outputs for c in output.outputs]
        assert [(c.text, c.token_ids) for c in found] == [("", ())] * n
        assert {c.finish_reason for c in found} == {FinishReason.LENGTH}
        assert outputs[-1].finished and engine.load().kv_cache_usage == 0
        # The prompt is in the cache now, except for its last token.
        again = await collect(engine, prompt, max_tokens=0, n=n, output_kind=kind)
        assert again[-1].num_cached_tokens == 48


@in_event_loop
async def test_a_prompt_without_output_may_fill_the_whole_context() -> None:
    async with make_engine(num_blocks=4) as engine:
        assert engine.max_model_len == 16
        [output] = await collect(engine, [1] * 16, max_tokens=0)
        assert output.finished
        with pytest.raises(InvalidRequestError):
            await collect(engine, [1] * 17, max_tokens=0)
        with pytest.raises(InvalidRequestError):
            await collect(engine, [1] * 16, max_tokens=1)


@in_event_loop
async def test_live_requests_hold_a_limited_number_of_prompt_logprobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "MAX_LIVE_PROMPT_LOGPROBS", 30)
    params = NOTHING.with_changes(prompt_logprobs=4)
    async with make_engine() as engine:
        streams = [await engine.submit(PROMPT, params) for _ in range(2)]
        with pytest.raises(OverloadedError, match="45 log-probabilities"):
            await engine.submit(PROMPT, params)
        await engine.submit(PROMPT, NOTHING)
        for stream in streams:
            async with aclosing(stream):
                assert [output.finished async for output in stream] == [True]
        await engine.submit(PROMPT, params)
        # One request alone is limited when it is checked.
        monkeypatch.setattr(checking, "MAX_PROMPT_LOGPROBS", 14)
        with pytest.raises(InvalidRequestError, match="15 log-probabilities"):
            await engine.submit(PROMPT, params)


@in_event_loop
async def test_a_chunk_of_a_prompt_wakes_no_reader() -> None:
    executor = SimulatedExecutor(num_blocks=64, block_size=4)
    async with make_engine(executor, max_num_batched_tokens=4, max_num_seqs=4) as engine:
        params = SamplingParams(max_tokens=2, prompt_logprobs=0, output_kind=OutputKind.DELTA)
        stream = await engine.submit(list(range(40)), params)
        outputs = [output async for output in stream]
        assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 1]
        await asyncio.sleep(0)
