"""The asyncio shell: streams, stop strings, aborts, failures, drain and close."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, ParamSpec

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Planned
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.errors import (
    ConfigError,
    DeviceError,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
)
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.outputs import FinishReason, RequestOutput
from tokenmill.core.plan import RequestFailure, StepPlan, StepResult
from tokenmill.core.processes.watching.board import Board, board_bytes
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor, expected_tokens
from tokenmill.testing.toy_tokenizer import ToyTokenizer

P = ParamSpec("P")
PROMPT = [10, 20, 30]


def make_engine(
    executor: SimulatedExecutor | None = None,
    *,
    num_blocks: int = 64,
    plugins: Sequence[object] = (),
    **options: Any,
) -> EngineShell:
    def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineParts:
        return EngineParts(
            executor=executor or SimulatedExecutor(num_blocks=num_blocks, block_size=4),
            tokenizer=ToyTokenizer(),
            plugins=PluginHost.load(config, extra=plugins),
        )

    return local_engine(EngineConfig(disable_log_stats=True, **options), build)


def in_event_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


async def collect(engine: EngineShell, prompt: Any = PROMPT, **params: Any) -> list[RequestOutput]:
    params.setdefault("seed", 7)
    return [o async for o in engine.generate(prompt, SamplingParams(**params))]


def text_of(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


EXPECTED = expected_tokens(PROMPT, 12, 7, 1000)


@in_event_loop
async def test_deltas_join_to_the_cumulative_and_the_final_output() -> None:
    async with make_engine() as engine:
        deltas = await collect(engine, max_tokens=12, output_kind=OutputKind.DELTA)
        cumulative = await collect(engine, max_tokens=12)
        final = await collect(engine, max_tokens=12, output_kind=OutputKind.FINAL)
    assert "".join(o.outputs[0].text for o in deltas) == text_of(EXPECTED)
    assert [t for o in deltas for t in o.outputs[0].token_ids] == EXPECTED
    assert cumulative[-1].outputs == final[-1].outputs
    assert len(final) == 1 and len(cumulative) > 1
    assert final[0].outputs[0].finish_reason is FinishReason.LENGTH
    assert [o.finished for o in cumulative] == [False] * (len(cumulative) - 1) + [True]


@in_event_loop
async def test_a_chat_streams_deltas_for_the_templates_prompt_and_leaving_it_aborts() -> None:
    messages = [{"role": "user", "content": "hi"}]
    params = SamplingParams(max_tokens=12, seed=7, output_kind=OutputKind.DELTA)
    async with make_engine() as engine:
        outputs = [o async for o in engine.chat(messages, params, request_id="a")]
        text = "".join(o.outputs[0].text for o in outputs)
        whole = [ord(letter) for letter in "user: hi\nassistant: "]
        assert text == text_of(expected_tokens(whole, 12, 7, 1000))
        assert len(outputs) > 1 and {o.request_id for o in outputs} == {"a"}
        async with aclosing(engine.chat(messages, params, add_generation_prompt=False)) as chat:
            assert (await anext(chat)).prompt_token_ids == tuple(whole[: -len("assistant: ")])
        assert not engine.load().num_running + engine.load().num_waiting


@in_event_loop
async def test_a_reader_that_sleeps_gets_what_it_missed_in_one_output() -> None:
    async with make_engine() as engine:
        params = SamplingParams(max_tokens=12, seed=7, output_kind=OutputKind.DELTA)
        stream = await engine.submit(PROMPT, params)
        await asyncio.sleep(0.3)
        outputs = [o async for o in stream]
    assert len(outputs) == 1
    assert list(outputs[0].outputs[0].token_ids) == EXPECTED


@pytest.mark.parametrize("prompt", [None, 5, b"abc", {"promt": "a"}, [1.5], ["a"]])
@in_event_loop
async def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError, match="prompt"):
            await engine.submit(prompt)


@in_event_loop
async def test_a_text_prompt_is_tokenized_and_comes_back_with_the_output() -> None:
    async with make_engine() as engine:
        outputs = await collect(engine, "abc", max_tokens=2)
    assert outputs[-1].prompt == "abc"
    assert outputs[-1].prompt_token_ids == (97, 98, 99)


@pytest.mark.parametrize("include", [False, True])
@in_event_loop
async def test_a_stop_string_across_tokens_ends_the_text_there(include: bool) -> None:
    stop = text_of(EXPECTED[4:6])

    async with make_engine() as engine:
        outputs = await collect(
            engine,
            max_tokens=12,
            stop=(stop,),
            include_stop_str_in_output=include,
            output_kind=OutputKind.DELTA,
        )
        assert "".join(o.outputs[0].text for o in outputs) == text_of(
            EXPECTED[: 6 if include else 4]
        )
        last = outputs[-1].outputs[0]
        assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == 6
        await engine.drain()
        assert engine.load().kv_cache_usage == 0


@in_event_loop
async def test_a_stop_token_is_not_part_of_the_text() -> None:
    async with make_engine() as engine:
        (output,) = await collect(
            engine, max_tokens=12, stop_token_ids=(EXPECTED[3],), output_kind=OutputKind.FINAL
        )
    completion = output.outputs[0]
    assert completion.text == text_of(EXPECTED[:3])
    assert list(completion.token_ids) == EXPECTED[:4]
    assert (completion.finish_reason, completion.stop_reason) == (
        FinishReason.STOP,
        EXPECTED[3],
    )


@in_event_loop
async def test_n_completions_differ_come_by_index_and_are_the_same_again_with_the_seed() -> None:
    async with make_engine() as engine:
        first, second = [
            (await collect(engine, n=3, max_tokens=5, output_kind=OutputKind.FINAL))[0]
            for _ in range(2)
        ]
    assert [c.index for c in first.outputs] == [0, 1, 2]
    assert len({c.token_ids for c in first.outputs}) == 3
    assert first.outputs == second.outputs
    assert list(first.outputs[0].token_ids) == EXPECTED[:5]


@in_event_loop
async def test_the_engines_seed_makes_unseeded_requests_repeatable() -> None:
    async def tokens(seed: int) -> tuple[int, ...]:
        async with make_engine(seed=seed) as engine:
            return (await collect(engine, seed=None, max_tokens=5))[-1].outputs[0].token_ids

    assert await tokens(1) == await tokens(1) != await tokens(2)


@in_event_loop
async def test_an_abort_ends_the_stream_with_its_reason() -> None:
    async with make_engine() as engine:
        stream = await engine.submit(PROMPT, SamplingParams(max_tokens=200), request_id="mine")
        await anext(stream)
        await engine.abort("mine")
        outputs = [o async for o in stream]
        assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
        await engine.drain()
        assert engine.load().kv_cache_usage == 0


@in_event_loop
async def test_a_reader_that_breaks_off_frees_its_blocks() -> None:
    async with make_engine() as engine:
        generation = engine.generate(PROMPT, SamplingParams(max_tokens=200))
        async for _ in generation:
            break
        await generation.aclose()  # type: ignore[attr-defined]
        await engine.drain()
        assert (engine.load().num_running, engine.load().kv_cache_usage) == (0, 0)


@in_event_loop
async def test_two_hundred_requests_with_random_aborts_leave_no_block_held() -> None:
    rng = random.Random(1)

    async def one(engine: EngineShell, i: int) -> None:
        params = SamplingParams(max_tokens=rng.randint(1, 40), seed=i, n=rng.choice([1, 1, 2]))
        prompt = [rng.randrange(1000) for _ in range(rng.randint(1, 30))]
        patience = rng.choice([None, 0, 1, 3])
        reads = 0
        generation = engine.generate(prompt, params)
        async for output in generation:
            reads += 1
            for completion in output.outputs:
                if completion.index == 0:
                    expected = expected_tokens(prompt, len(completion.token_ids), i, 1000)
                    assert list(completion.token_ids) == expected
            if patience is not None and reads > patience:
                break
        await generation.aclose()  # type: ignore[attr-defined]

    async with make_engine(max_num_seqs=16) as engine:
        async with asyncio.TaskGroup() as group:
            for i in range(200):
                group.create_task(one(engine, i))
        await engine.drain()
        load = engine.load()
        assert (load.num_running, load.num_waiting, load.kv_cache_usage) == (0, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], {}, "prompt"),
        ("", {}, "prompt"),
        ([1, 1000], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1, True], {}, "prompt"),
        ([1] * 300, {}, "prompt"),
        ("x" * 300, {}, "prompt"),
        ([1] * 200, {"max_tokens": 100}, "max_tokens"),
        ([1], {"stop_token_ids": (1000,)}, "stop_token_ids"),
        ([1], {"logit_bias": {1000: 1.0}}, "logit_bias"),
        ([1], {"logprobs": 21}, "logprobs"),
        ([1] * 200, {"max_tokens": None, "min_tokens": 100}, "min_tokens"),
    ],
)
@in_event_loop
async def test_a_request_that_cannot_run_is_refused_by_the_name_of_its_field(
    prompt: Any, params: dict[str, Any], param: str
) -> None:
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError) as raised:
            await engine.submit(prompt, SamplingParams(**params))
        assert raised.value.param == param
        assert engine.load().num_waiting == 0


@in_event_loop
async def test_an_overflow_names_both_numbers() -> None:
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError, match=r"256 tokens.*200.*100"):
            await engine.submit([1] * 200, SamplingParams(max_tokens=100))


@in_event_loop
async def test_no_max_tokens_means_the_room_that_is_left() -> None:
    async with make_engine() as engine:
        outputs = await collect(engine, [1] * 250, max_tokens=None)
        assert len(outputs[-1].outputs[0].token_ids) == 6


@in_event_loop
async def test_a_full_queue_refuses_with_overloaded() -> None:
    async with make_engine(max_num_queued_reqs=1, max_num_seqs=1) as engine:
        with pytest.raises(OverloadedError):
            for _ in range(3):
                await engine.submit([1], SamplingParams(max_tokens=100))


@pytest.mark.parametrize(
    ("of_engine", "of_request"), [(0.2, None), (None, 0.2), (0.2, 60), (60, 0.2)]
)
@in_event_loop
async def test_a_request_ends_after_the_timeout_with_what_it_has(
    of_engine: float | None, of_request: float | None
) -> None:
    class Slow(SimulatedExecutor):
        def run(self, plan: StepPlan) -> StepResult:
            time.sleep(0.02)
            return super().run(plan)

    slow = Slow(num_blocks=64, block_size=4)
    params = SamplingParams(max_tokens=200, output_kind=OutputKind.FINAL)
    async with make_engine(slow, request_timeout=of_engine) as engine:
        outputs = engine.generate(PROMPT, params, request_timeout=of_request)
        [output] = [output async for output in outputs]
    completion = output.outputs[0]
    assert completion.finish_reason is FinishReason.ABORT
    assert completion.stop_reason == "request_timeout"
    assert 0 < len(completion.token_ids) < 200


class Watched(SimulatedExecutor):
    """Notes how many plans were made by the end of each step, itself and what follows it."""

    TOKENMILL_API = (1, 1)

    def __init__(self) -> None:
        super().__init__(num_blocks=64, block_size=4)
        self.num_planned = 0
        self.ahead_of_prompts: set[int] = set()
        self.ahead_of_decodes: set[int] = set()

    @hookimpl
    def on_planned(self, event: Planned) -> None:
        self.num_planned = event.step_id

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(0.02)
        computes_prompt = any(grant.num_tokens > 1 for grant in plan.grants)
        ahead = self.ahead_of_prompts if computes_prompt else self.ahead_of_decodes
        ahead.add(self.num_planned - plan.step_id)
        return super().run(plan)


@pytest.mark.parametrize("async_scheduling", [True, False])
@in_event_loop
async def test_a_step_is_planned_ahead_of_decodes_not_of_prompts(
    async_scheduling: bool,
) -> None:
    watched = Watched()
    options = {"plugins": [watched], "async_scheduling": async_scheduling}
    async with make_engine(watched, **options) as engine:
        (output,) = await collect(engine, max_tokens=12, output_kind=OutputKind.FINAL)
        await engine.drain()
    assert list(output.outputs[0].token_ids) == EXPECTED
    assert watched.ahead_of_prompts == {0}
    assert (1 in watched.ahead_of_decodes) is async_scheduling
    assert max(watched.ahead_of_decodes) <= 1


class Faulty(SimulatedExecutor):
    """Raises, or fails one request, when a step computes a request whose prompt begins with 666."""

    def __init__(self, fault: str) -> None:
        super().__init__(num_blocks=64, block_size=4)
        self.fault = fault

    def run(self, plan: StepPlan) -> StepResult:
        bad = [s.engine_id for s in plan.starts if s.token_ids[0] == 666]
        result = super().run(plan)
        if not bad:
            return result
        if self.fault == "device":
            raise DeviceError("the device is lost")
        if self.fault == "step":
            raise RuntimeError("planted")
        failure = RequestFailure(engine_id=bad[0], message="the logits are not finite")
        return StepResult(step_id=plan.step_id, token_ids=result.token_ids, failures=(failure,))


@in_event_loop
async def test_a_failing_request_ends_alone() -> None:
    async with make_engine(Faulty("request")) as engine:
        good = await engine.submit(PROMPT, SamplingParams(max_tokens=12, seed=7))
        with pytest.raises(RequestFailedError, match="not finite"):
            await collect(engine, [666, 1], max_tokens=5)
        outputs = [o async for o in good]
        assert list(outputs[-1].outputs[0].token_ids) == EXPECTED
        await engine.drain()
        assert engine.load().kv_cache_usage == 0


@in_event_loop
async def test_a_failing_step_ends_its_requests_and_the_engine_goes_on() -> None:
    async with make_engine(Faulty("step")) as engine:
        with pytest.raises(RequestFailedError):
            await collect(engine, [666, 1], max_tokens=5, n=2)
        outputs = await collect(engine, max_tokens=12)
        assert list(outputs[-1].outputs[0].token_ids) == EXPECTED
        assert engine.load().is_alive


@in_event_loop
async def test_a_lost_device_ends_the_engine_and_it_says_so() -> None:
    async with make_engine(Faulty("device")) as engine:
        waiting = await engine.submit(PROMPT, SamplingParams(max_tokens=200))
        with pytest.raises(EngineStoppedError):
            await collect(engine, [666, 1], max_tokens=5)
        with pytest.raises(EngineStoppedError):
            async for _ in waiting:
                pass
        assert not engine.load().is_alive
        with pytest.raises(EngineStoppedError, match="the device is lost"):
            await engine.submit(PROMPT)


@in_event_loop
async def test_drain_finishes_what_was_accepted_and_refuses_what_comes() -> None:
    async with make_engine() as engine:
        stream = await engine.submit(PROMPT, SamplingParams(max_tokens=12, seed=7))
        draining = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineStoppedError, match="shutting down"):
            await engine.submit(PROMPT)
        outputs = [o async for o in stream]
        await draining
        assert list(outputs[-1].outputs[0].token_ids) == EXPECTED


@in_event_loop
async def test_drain_aborts_what_is_left_after_its_time() -> None:
    async with make_engine(num_blocks=4096) as engine:
        stream = await engine.submit(PROMPT, SamplingParams(max_tokens=16000))
        await engine.drain(0.05)
        outputs = [o async for o in stream]
        assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT


@in_event_loop
async def test_closing_twice_is_fine_and_ends_open_streams() -> None:
    engine = make_engine()
    await engine.start()
    stream = await engine.submit(PROMPT, SamplingParams(max_tokens=200))
    await engine.close()
    await engine.close()
    outputs = [o async for o in stream]
    assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
    with pytest.raises(EngineStoppedError):
        await engine.submit(PROMPT)


@in_event_loop
async def test_an_engine_that_is_not_started_says_how_to_start_it() -> None:
    with pytest.raises(EngineStoppedError, match="async with"):
        await make_engine().submit(PROMPT)


@in_event_loop
async def test_a_failed_start_raises_its_error_and_leaves_no_thread() -> None:
    with pytest.raises(ConfigError, match="max-model-len"):
        async with make_engine(max_model_len=257):
            pass


@in_event_loop
async def test_several_engines_serve_side_by_side() -> None:
    async with make_engine() as one, make_engine() as two:
        first, second = await asyncio.gather(
            collect(one, max_tokens=12), collect(two, max_tokens=12)
        )
    assert first[-1].outputs == second[-1].outputs
    assert b"tokenmill" in one.render_metrics()


@in_event_loop
async def test_a_parent_reads_from_the_board_what_an_engine_has_done() -> None:
    engine = make_engine()
    engine.running.board = board = Board(memoryview(bytearray(board_bytes(4))))
    async with engine:
        stream = await engine.submit(PROMPT, SamplingParams(max_tokens=3))
        assert [output async for output in stream][-1].finished
        await engine.drain(10)
    assert board.progress.num_finished >= 3 and not board.progress.is_busy
    assert board.in_work() == {}
