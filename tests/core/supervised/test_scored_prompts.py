"""Log-probabilities of a long prompt travel in parts: no event loop decodes all at once."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from tests.core.shell.test_engine_shell import make_engine
from tokenmill.core.plan import StepPlan, StepResult, TokenLogprobs
from tokenmill.core.processes.channels.frames import FrameReader, frame
from tokenmill.core.processes.channels.messages import Message, encode
from tokenmill.core.processes.watching.board import Board, board_bytes
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams
from tokenmill.core.shell.checking import CheckedRequest, check_ids
from tokenmill.core.supervised.engine_process import SCORED_TOKENS, EngineProcess
from tokenmill.core.supervised.messages import (
    Outputs,
    Ready,
    Scored,
    StartEngine,
    Stop,
    Submit,
    decode_from_engine,
)
from tokenmill.core.supervised.stream import RemoteStream
from tokenmill.testing.simulated.executor import SimulatedExecutor

PROMPT = tuple(range(3 * SCORED_TOKENS + 5))


class Scoring(SimulatedExecutor):
    def run(self, plan: StepPlan) -> StepResult:
        scores = tuple(
            tuple(self._score(grant.scored_start + i) for i in range(grant.num_scored_tokens))
            for grant in plan.grants
        )
        return replace(super().run(plan), prompt_logprobs=scores)

    def _score(self, position: int) -> TokenLogprobs:
        return TokenLogprobs(token_id=position, logprob=-1.0, rank=1)  # names its place


def checked(params: SamplingParams) -> CheckedRequest:
    info = SimulatedExecutor(num_blocks=256, block_size=4).info
    return check_ids(PROMPT, params, vocab_size=info.vocab_size, max_model_len=1024)


async def answer(request: CheckedRequest) -> list[Message]:
    """What an engine's process sends about one request."""
    theirs, ours = socket.socketpair()
    board = Board(memoryview(bytearray(board_bytes(8))))
    loop = asyncio.get_running_loop()
    theirs.setblocking(False)
    _, host = await loop.create_connection(lambda: EngineProcess(board), sock=theirs)
    engine = make_engine(Scoring(num_blocks=256, block_size=4))
    serving = asyncio.create_task(host.run(StartEngine(engine.config, 20), lambda *_: engine))
    reader, writer = await asyncio.open_connection(sock=ours)
    found: list[Message] = []
    frames = FrameReader()
    while not any(map(is_end, found)):
        news = [decode_from_engine(data) for data in frames.feed(await reader.read(1 << 16))]
        if any(isinstance(message, Ready) for message in news):
            writer.write(frame(encode(Submit(1, request))))
        found += news
    writer.write(frame(encode(Stop())))
    await serving
    writer.close()
    return found


def is_end(message: Message) -> bool:
    outputs = message.outputs if isinstance(message, Outputs) else ()
    return any(one.output is None or one.output.finished for one in outputs)


@pytest.mark.parametrize("kind", OutputKind)
def test_log_probabilities_of_a_long_prompt_arrive_in_parts(kind: OutputKind) -> None:
    params = SamplingParams(max_tokens=3, prompt_logprobs=0, output_kind=kind, ignore_eos=True)

    async def run() -> None:
        stream = RemoteStream(prompt=None, request=checked(params))
        outputs = []
        for message in await asyncio.wait_for(answer(checked(params)), 60):
            if isinstance(message, Scored):
                assert len(message.logprobs) <= SCORED_TOKENS
                stream.scored += message.logprobs
            elif isinstance(message, Outputs):
                for one in message.outputs:
                    assert one.output is not None and one.output.prompt_logprobs is None
                    stream.add(one.output)
                    outputs.append(await anext(stream))
        first, *others = outputs
        assert [s and s.token_id for s in first.prompt_logprobs or ()] == [None, *PROMPT[:-1]]
        again = first.prompt_logprobs if kind is OutputKind.CUMULATIVE else None
        assert all(output.prompt_logprobs == again for output in others)

    asyncio.run(run())
