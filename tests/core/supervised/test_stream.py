"""The stream of a request in another process: what its reader gets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tokenmill.core.outputs import CompletionOutput, FinishReason, RequestOutput
from tokenmill.core.requests.media import MediaItem
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.supervised.stream import RemoteStream
from tokenmill.testing.simulated.executor import SimulatedExecutor


def output(text: str, reason: FinishReason | None = None) -> RequestOutput:
    completion = CompletionOutput(index=0, text=text, token_ids=(1,), finish_reason=reason)
    return RequestOutput(
        request_id="a",
        prompt=None,
        prompt_token_ids=(),
        outputs=(completion,),
        finished=reason is not None,
    )


def test_a_waiting_reader_gets_nothing_of_a_lost_engine_and_all_of_the_next_one() -> None:
    async def read() -> list[str]:
        stream = RemoteStream(
            prompt=None,
            request=check_ids(
                [1],
                SamplingParams(output_kind=OutputKind.DELTA),
                vocab_size=SimulatedExecutor(num_blocks=8, block_size=4).info.vocab_size,
                max_model_len=100,
            ),
        )

        async def texts() -> list[str]:
            return [found.outputs[0].text async for found in stream]

        reading = asyncio.create_task(texts())
        await asyncio.sleep(0)  # the reader waits
        stream.add(output("lost"))
        stream.restart()  # its engine sent the output and its own end at once
        await asyncio.sleep(0)
        stream.add(output("new", FinishReason.STOP))
        return await reading

    assert asyncio.run(asyncio.wait_for(read(), 30)) == ["new"]


def test_the_same_text_beside_another_image_is_another_prompt() -> None:
    """One of them may have ended an engine, for which the other one must not be refused."""
    request = check_ids([1, 7, 7], SamplingParams(), vocab_size=10, max_model_len=100)

    def digest(image: bytes) -> bytes:
        item = MediaItem(digest=image, start=1, num_tokens=2, cost=1, shape=(), pixels=b"")
        return RemoteStream(prompt=None, request=replace(request, media=(item,))).digest

    assert digest(b"one") == digest(b"one") != digest(b"two")
    assert RemoteStream(prompt=None, request=request).digest != digest(b"one")
