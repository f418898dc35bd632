"""Everything that travels between the processes arrives as it was sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import Load
from tokenmill.core.contract.registry import Replica
from tokenmill.core.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from tokenmill.core.plan import TokenLogprobs
from tokenmill.core.processes.channels.messages import Refused, encode
from tokenmill.core.requests.grammar import Grammar
from tokenmill.core.requests.media import MediaItem
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams
from tokenmill.core.shell.checking import NO_OPTIONS, CheckedRequest, check_ids
from tokenmill.core.supervised.messages import (
    Output,
    Outputs,
    StartEngine,
    Submit,
    decode_from_engine,
    decode_to_engine,
)
from tokenmill.core.supervised.stream import RemoteStream
from tokenmill.testing.simulated.executor import SimulatedExecutor

LOAD = Load(
    num_running=1,
    num_waiting=2,
    kv_cache_usage=0.5,
    stalled_for=0.0,
    is_alive=True,
    is_draining=False,
)
PARAMS = SamplingParams(
    n=2,
    stop=("a", "b"),
    logit_bias={5: 1.5, 6: -2},
    logprobs=3,
    output_kind=OutputKind.DELTA,
    allowed_token_ids=(5, 6),
    bad_words=("c",),
    extra_args={"a": [1, {"b": None}], "c": "d"},
)


def checked(
    ids: tuple[int, ...], params: SamplingParams, options: RequestOptions = NO_OPTIONS
) -> CheckedRequest:
    info = SimulatedExecutor(num_blocks=8, block_size=4).info
    return check_ids(ids, params, options, vocab_size=info.vocab_size, max_model_len=100)


def output(text: str, *ids: int, index: int = 0, end: FinishReason | None = None) -> RequestOutput:
    logprobs = tuple(TokenLogprobs(token_id=i, logprob=-0.5, rank=1, top=((i, -0.5),)) for i in ids)
    return RequestOutput(
        request_id="one",
        prompt=None,
        prompt_token_ids=(),
        outputs=(
            CompletionOutput(
                index=index, text=text, token_ids=ids, logprobs=logprobs, finish_reason=end
            ),
        ),
        finished=end is not None,
        metrics=RequestMetrics(arrival_time=1.5, num_preemptions=3),
    )


def test_requests_and_configurations_arrive_equal() -> None:
    config = EngineConfig(
        model="x", seed=3, speculative_config={"method": "ngram", "num_speculative_tokens": 2}
    )
    start = StartEngine(config, 20, Replica(index=1, count=2))
    assert decode_to_engine(encode(start)) == start


@pytest.mark.parametrize("data", [SamplingParams, RequestOptions, Grammar])
def test_a_request_arrives_equal_and_read_only_without_a_second_check(
    data: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise AssertionError("checked again")

    options = RequestOptions(request_id="r", priority=-3, metadata={"tenant": "b"})
    params = PARAMS.with_changes(grammar=Grammar.choice(["a", "b"]))
    sent = Submit(7, checked((1, 2, 3), params, options))
    monkeypatch.setattr(data, "_check", fail)
    with pytest.raises(AssertionError, match="again"):
        data(**({"kind": "regex"} if data is Grammar else {}))
    found = decode_to_engine(encode(sent))
    assert found == sent and hash(found) == hash(sent)
    for given in (found.request.params.extra_args, found.request.options.metadata):
        with pytest.raises(TypeError, match="read-only"):
            given["a"] = "b"


def test_images_arrive_equal_with_their_pixels() -> None:
    items = tuple(
        MediaItem(
            digest=pixels,
            start=start,
            num_tokens=2,
            cost=5,
            shape=(1, 1, 3),
            pixels=pixels,
            is_whole=is_whole,
        )
        for start, pixels, is_whole in ((1, b"abc", True), (3, b"def", False))
    )
    request = replace(checked((1, 7, 7, 7, 7), PARAMS), media=items)
    found = decode_to_engine(encode(Submit(7, request.without_pixels())))
    assert isinstance(found, Submit) and [one.pixels for one in found.request.media] == [b"", b""]
    assert found.request.with_pixels({item.digest: item.pixels for item in items}) == request


def test_outputs_arrive_equal() -> None:
    ended = output("c", 7, end=FinishReason.STOP)
    failed = Output(5, None, Refused(5, "RequestFailedError", "no"))
    sent = Outputs(LOAD, (Output(3, output("ab", 5, 6)), Output(4, ended), failed))
    assert decode_from_engine(encode(sent)) == sent


def stream_of(kind: OutputKind) -> RemoteStream:
    return RemoteStream(prompt="p", request=checked((1,), PARAMS.with_changes(output_kind=kind)))


def test_a_slow_reader_gets_all_new_parts_as_one_output() -> None:
    async def read() -> None:
        stream = stream_of(OutputKind.DELTA)
        scored = (None, TokenLogprobs(token_id=4, logprob=-2.5, rank=3))
        stream.scored += scored
        stream.add(output("a", 1))
        stream.add(output("x", 8, index=1))
        stream.add(output("b", 2, 3, end=FinishReason.LENGTH))
        [found] = [found async for found in stream]
        assert [c.text for c in found.outputs] == ["ab", "x"]
        assert found.outputs[0].token_ids == (1, 2, 3)
        assert [p.token_id for p in found.outputs[0].logprobs or ()] == [1, 2, 3]
        assert found.outputs[0].finish_reason is FinishReason.LENGTH
        assert found.prompt_logprobs == scored
        assert (found.prompt, found.prompt_token_ids, found.finished) == ("p", (1,), True)

    asyncio.run(read())


def test_a_cumulative_output_replaces_the_one_before() -> None:
    async def read() -> None:
        stream = stream_of(OutputKind.CUMULATIVE)
        stream.add(output("a", 1))
        stream.add(output("ab", 1, 2, end=FinishReason.STOP))
        assert [found.outputs[0].text async for found in stream] == ["ab"]

    asyncio.run(read())
