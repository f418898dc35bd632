"""The library: LLM in scripts and notebooks, AsyncEngine in programs."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tokenmill
from tokenmill import (
    LLM,
    AsyncEngine,
    ConfigError,
    EngineStoppedError,
    InvalidRequestError,
    OutputKind,
    OverloadedError,
    RequestFailedError,
    SamplingParams,
    WrongContextError,
)
from tokenmill.core.processes.place import Place
from tokenmill.core.shell.steps import loop
from tokenmill.core.supervised.client import SupervisedEngine
from tokenmill.llm import Prompt
from tokenmill.plugin import Load, Refusal, RequestView, hookimpl
from tokenmill.testing.simulated.executor import expected_tokens

from .api.serving import SteeredExecutor, toy_engine
from .api.toy_process import toy_process

GREEDY = SamplingParams(max_tokens=5, temperature=0)
SEEDED = SamplingParams(max_tokens=6, seed=7)


@pytest.fixture
def executor() -> SteeredExecutor:
    return SteeredExecutor()


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, executor: SteeredExecutor) -> Iterator[LLM]:
    """An LLM without a model: a character is a token."""
    monkeypatch.setattr(
        "tokenmill.llm.AsyncEngine",
        lambda model, *, plugins=(), **options: toy_engine(executor, **options),
    )
    with LLM(max_num_queued_reqs=8) as llm:
        yield llm


def expected(prompt: str, num_tokens: int = 6, seed: int = 7) -> str:
    return "".join(map(chr, expected_tokens(list(map(ord, prompt)), num_tokens, seed, 1000)))


def texts_of(outputs: list[tokenmill.RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_prompts_are_answered_in_their_order_however_many_there_are(llm: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(50)]
    outputs = llm.generate(prompts, SEEDED, use_tqdm=False)
    assert texts_of(outputs) == [expected(prompt) for prompt in prompts]
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished for output in outputs)
    assert llm.engine.load().kv_cache_usage == 0


def test_a_batch_waits_for_room_whatever_it_needs(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_LIVE_PROMPT_LOGPROBS", 30)
    params = [
        SEEDED.with_changes(n=n, prompt_logprobs=logprobs)
        for n, logprobs in [(1, 2), (4, 2), (2, None), (1, None)] * 10
    ]
    outputs = llm.generate([f"prompt {i}" for i in range(40)], params)
    assert [len(output.outputs) for output in outputs] == [1, 4, 2, 1] * 10
    assert all(output.finished for output in outputs)
    assert llm.engine.load().kv_cache_usage == 0


class Full:
    """Refuses requests while others are live, and one prompt always."""

    @hookimpl
    def admit(self, request: RequestView, load: Load) -> Refusal | None:
        if load.num_running + load.num_waiting or request.num_prompt_tokens == 13:
            return Refusal(reason="full")
        return None


def test_a_request_that_a_plugin_refuses_waits_for_others_but_not_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tokenmill.llm.AsyncEngine", lambda model, **options: toy_engine(extra=[Full()])
    )
    with LLM() as llm:
        assert texts_of(llm.generate(["abc"] * 10, SEEDED)) == [expected("abc")] * 10
        with pytest.raises(OverloadedError, match="full"):
            llm.generate(["abc"] * 10 + ["a" * 13], SEEDED)
        assert texts_of(llm.generate("abc", SEEDED)) == [expected("abc")]


def test_one_prompt_may_come_without_a_list_as_text_or_token_ids(llm: LLM) -> None:
    assert texts_of(llm.generate("abc", SEEDED)) == [expected("abc")]
    assert texts_of(llm.generate([97, 98, 99], SEEDED)) == [expected("abc")]
    assert texts_of(llm.generate([[97], [98]], SEEDED)) == [expected("a"), expected("b")]
    assert llm.generate([]) == []


def test_prompts_may_have_the_shape_of_vllm(llm: LLM) -> None:
    prompts: list[Prompt] = [{"prompt": "abc"}, {"prompt_token_ids": [98]}]
    assert texts_of(llm.generate(prompts, SEEDED)) == [expected("abc"), expected("b")]
    assert texts_of(llm.generate({"prompt": "abc"}, SEEDED)) == [expected("abc")]
    two, unknown = {"prompt": "a", "prompt_token_ids": [97]}, {"promt": "a"}
    for wrong in (two, unknown, {}, b"abc", [b"abc"]):
        with pytest.raises(InvalidRequestError, match=r"prompt_token_ids|bytes"):
            llm.generate(wrong, SEEDED)


def test_a_chat_is_one_conversation_or_several_and_may_go_on_with_a_message(llm: LLM) -> None:
    hi, ho = [{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]
    prompts = ["user: hi\nassistant: ", "user: ho\nassistant: "]
    assert texts_of(llm.chat(hi, SEEDED)) == [expected(prompts[0])]
    assert texts_of(llm.chat([hi, ho], SEEDED)) == list(map(expected, prompts))
    begun = [*hi, {"role": "assistant", "content": "a"}]
    found = llm.chat(begun, SEEDED, add_generation_prompt=False, continue_final_message=True)
    assert texts_of(found) == [expected("user: hi\nassistant: a\n")]


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    params = [SEEDED.with_changes(max_tokens=n) for n in (1, 4)]
    outputs = llm.generate(["a", "b"], params)
    assert texts_of(outputs) == [expected("a", 1), expected("b", 4)]
    with pytest.raises(ValueError, match="2 prompts"):
        llm.generate(["a", "b"], params[:1])


@pytest.mark.parametrize("params", [{"max_tokens": 3}, 5, SamplingParams])
def test_parameters_in_another_shape_are_refused(llm: LLM, params: Any) -> None:
    for given in (params, [params]):
        with pytest.raises(InvalidRequestError, match=r"parameters are SamplingParams\(...\), got"):
            llm.generate("abc", given)
    with pytest.raises(InvalidRequestError, match=r"parameters are PoolingParams\(...\), got"):
        llm.embed("abc", pooling_params=params)

    async def stream() -> None:
        async with toy_engine() as engine:
            await engine.submit("abc", params)

    with pytest.raises(InvalidRequestError, match=r"parameters are SamplingParams\(...\), got"):
        asyncio.run(stream())


@pytest.mark.parametrize("prompts", [None, 5, [None]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a prompt is a text or a list of token ids"):
        llm.generate(prompts)


def test_a_chat_template_for_one_chat_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"LLM\(chat_template="):
        llm.chat([{"role": "user", "content": "a"}], chat_template="{{ messages }}")


def test_n_completions_come_whole_in_one_output(llm: LLM) -> None:
    (output,) = llm.generate("abc", SEEDED.with_changes(n=3))
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert all(len(completion.token_ids) == 6 for completion in output.outputs)


def test_the_progress_bar_leaves_standard_output_alone(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    for use_tqdm in (False, True):
        assert texts_of(llm.generate("abc", SEEDED, use_tqdm=use_tqdm)) == [expected("abc")]
        assert capsys.readouterr().out == ""


def test_a_refused_prompt_is_raised_as_it_is_and_the_next_call_works(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="2000"):
        llm.generate(["abc", "a" * 2000, "def"], SEEDED)
    with pytest.raises(InvalidRequestError):
        llm.generate("abc", SEEDED.with_changes(stop_token_ids=(5000,)))
    assert texts_of(llm.generate("abc", SEEDED)) == [expected("abc")]
    assert llm.engine.load().kv_cache_usage == 0


def test_a_failed_step_is_raised_as_it_is_and_the_next_call_works(
    llm: LLM, executor: SteeredExecutor
) -> None:
    executor.failure = ValueError("injected")
    with pytest.raises(RequestFailedError):
        llm.generate(["abc", "def"], SEEDED)
    executor.failure = None
    assert texts_of(llm.generate("abc", SEEDED)) == [expected("abc")]


def test_it_works_inside_a_running_event_loop(llm: LLM) -> None:
    async def notebook_cell() -> list[str]:
        return texts_of(llm.generate("abc", SEEDED))

    assert asyncio.run(notebook_cell()) == [expected("abc")]


def test_threads_may_share_it(llm: LLM) -> None:
    results: dict[str, list[str]] = {}

    def work(prompt: str) -> None:
        results[prompt] = texts_of(llm.generate([prompt] * 30, SEEDED))

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in ("ab", "cd")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {prompt: [expected(prompt)] * 30 for prompt in ("ab", "cd")}


def test_with_replicas_the_engines_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tokenmill.llm.build_supervised_engine",
        lambda config, progress: toy_process(places=(Place(),) * config.data_parallel_size),
    )
    prompts = [f"prompt {i}" for i in range(8)]
    with LLM(data_parallel_size=2) as llm:
        outputs = llm.generate(prompts, SEEDED, use_tqdm=False)
        assert texts_of(outputs) == [expected(prompt) for prompt in prompts]
        assert isinstance(llm.engine.running, SupervisedEngine)
        served = [
            link.board.progress.num_finished > 0
            for _, link in llm.engine.running.replicas.serving()
        ]
        assert served == [True, True]
        with pytest.raises(WrongContextError, match="another event loop"):
            asyncio.run(llm.engine.submit("abc"))
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate("abc")


def test_replicas_cannot_use_objects_of_the_program() -> None:
    with pytest.raises(ConfigError, match=r"which cannot use objects.*name plugins in"):
        LLM(data_parallel_size=2, plugins=[object()])


def test_after_close_it_says_so_and_its_threads_are_gone(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate("abc")
    assert not [t for t in threading.enumerate() if t.name == "tokenmill-llm"]


def test_a_forgotten_one_closes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.llm.AsyncEngine", lambda model, **options: toy_engine())
    llm = LLM()
    assert texts_of(llm.generate("abc", SEEDED)) == [expected("abc")]
    del llm
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "tokenmill-llm"]


def test_after_a_reset_a_prompt_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.llm.AsyncEngine", lambda model, **options: toy_engine())
    with LLM() as llm:
        found = [llm.generate("a known prompt")[0].num_cached_tokens for _ in range(2)]
        assert llm.reset_prefix_cache()
        found.append(llm.generate("a known prompt")[0].num_cached_tokens)
    assert found == [0, 12, 0]


def test_several_at_once_have_metrics_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.llm.AsyncEngine", lambda model, **options: toy_engine())
    with LLM() as first, LLM() as second:
        first.generate(["abc"] * 3, SEEDED)
        second.generate("abc", SEEDED)
        counts = [
            next(
                float(line.split()[-1])
                for line in one.engine.render_metrics().decode().splitlines()
                if line.startswith("tokenmill:generation_tokens_total")
            )
            for one in (first, second)
        ]
    assert counts == [18, 6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_seq": 4}, "max_num_seqs"),
        ({"block_size": 7}, "block-size"),
        ({"model": "/no/such/model"}, "/no/such/model"),
        ({"scheduler": "chunkd"}, "chunked"),
    ],
    ids=str,
)
def test_what_cannot_work_is_a_config_error_and_leaves_no_thread(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(**options)
    assert not [t for t in threading.enumerate() if t.name == "tokenmill-llm"]


def test_the_real_model_answers_and_nothing_global_changes() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    levels = (logging.root.handlers[:], logging.root.level)
    with LLM(num_gpu_blocks_override=32, dtype="float32") as llm:
        (output,) = llm.generate("The capital of France is", GREEDY)
        assert "Paris" in output.outputs[0].text
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answers = llm.chat([question, question], GREEDY.with_changes(max_tokens=8))
        assert "Paris" in answers[0].outputs[0].text == answers[1].outputs[0].text
        tokenizer = llm.get_tokenizer()
        assert tokenizer.decode(tokenizer.encode("Paris")) == "Paris"
        with pytest.raises(InvalidRequestError, match="role"):
            llm.chat([{"role": "robot", "content": "hi"}])
    assert handlers == {number: signal.getsignal(number) for number in handlers}
    assert levels == (logging.root.handlers, logging.root.level)
    assert not logging.getLogger("tokenmill").handlers


def test_an_embedded_engine_streams_and_breaking_off_aborts() -> None:
    async def main() -> None:
        async with AsyncEngine(num_gpu_blocks_override=32, disable_log_stats=True) as engine:
            text = ""
            params = SamplingParams(max_tokens=5, temperature=0, output_kind=OutputKind.DELTA)
            async for output in engine.generate("The capital of France is", params):
                text += output.outputs[0].text
            assert "Paris" in text
            stream = engine.generate("Once", SamplingParams(max_tokens=300))
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
            await engine.drain()
            assert engine.load().kv_cache_usage == 0
        await engine.close()

    asyncio.run(main())


def test_a_prompt_ends_at_its_time_limit_with_its_text(llm: LLM, executor: SteeredExecutor) -> None:
    executor.step_seconds = 0.01
    params = SamplingParams(max_tokens=900, temperature=0)
    for output in llm.generate(["abc", "de"], params, request_timeout=2):
        [completion] = output.outputs
        assert completion.stop_reason == "request_timeout"
        assert 0 < len(completion.token_ids) < 900
