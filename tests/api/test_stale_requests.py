"""An engine that was started again with a smaller context."""

from __future__ import annotations

import asyncio

import pytest

from tokenmill.core.errors import EngineStoppedError
from tokenmill.core.processes.place import WHOLE_MACHINE
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams

from .toy_process import NUM_BLOCKS, toy_process, until


def test_it_refuses_requests_that_were_checked_for_the_old_one_and_serves_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = SamplingParams(max_tokens=8000, ignore_eos=True, output_kind=OutputKind.FINAL)
    places = (WHOLE_MACHINE, WHOLE_MACHINE)

    async def lose_both() -> None:
        async with toy_process(places=places, num_gpu_blocks_override=2048) as engine:
            assert engine.max_model_len == 8192
            stream = await engine.submit([1], long)
            supervisors = engine.running.replicas.supervisors
            [owner] = [one for one in supervisors if one.link and one.link.open_requests]
            [other] = set(supervisors) - {owner}
            monkeypatch.setenv(NUM_BLOCKS, "16")
            assert owner.link is not None and other.link is not None
            other.link.kill("planted")
            await until(lambda: other.num_restarts == 1 and other.ready_link)
            assert engine.max_model_len == 64
            owner.link.kill("planted")  # the other engine gets its request
            with pytest.raises(EngineStoppedError, match="a context of 8192 tokens"):
                await anext(stream)
            whole = SamplingParams(max_tokens=None, ignore_eos=True, output_kind=OutputKind.FINAL)
            [output] = [o async for o in engine.generate([1, 2], whole)]
            assert len(output.outputs[0].token_ids) == 62

    asyncio.run(asyncio.wait_for(lose_both(), 100))
