"""Requests are checked once, and refused by engines for which the check does not hold."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import tokenmill
from tokenmill.core.errors import EngineStoppedError, InvalidRequestError
from tokenmill.core.requests.media import MediaItem
from tokenmill.core.requests.media_prompt import MediaPrompt
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids, check_media
from tokenmill.testing.simulated.executor import SimulatedExecutor
from tokenmill.testing.simulated.pictures import PLACEHOLDER

from .test_engine_shell import PROMPT, in_event_loop, make_engine

PACKAGE = Path(tokenmill.__file__).parent

P = PLACEHOLDER


@pytest.mark.parametrize(
    ("vocab_size", "max_model_len", "is_stale"),
    [(1000, 256, False), (1000, 255, False), (1000, 257, True), (999, 256, True), (1001, 9, True)],
)
@in_event_loop
async def test_an_engine_refuses_what_was_checked_for_more_tokens_or_another_vocabulary(
    vocab_size: int, max_model_len: int, is_stale: bool
) -> None:
    async with make_engine() as engine:
        assert (engine.info.vocab_size, engine.max_model_len) == (1000, 256)
        params = SamplingParams(max_tokens=2)
        request = check_ids(PROMPT, params, vocab_size=vocab_size, max_model_len=max_model_len)
        if is_stale:
            with pytest.raises(EngineStoppedError, match="send it again"):
                await engine.running.queue(request, None, 0.0)
        else:
            assert [o async for o in await engine.running.queue(request, None, 0.0)][-1].finished


def test_only_the_check_makes_a_checked_request() -> None:
    makers = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("CheckedRequest")
    }
    assert makers == {"checking.py"}


@pytest.mark.parametrize(
    ("token_ids", "fits"),
    [
        ([1, P, P, 2, P, P, 3], True),
        ([1, P, 2, P, 2, P, 3], False),  # a row is missing
        ([1, P, P, P, P, P, 3], False),  # one too many
        ([P, P, P, P, 2, 1, 3], False),  # it ends too late
        ([1, 2, P, P, P, P, 3], False),  # it begins too early
        ([1, P, P, 2, P], False),
    ],
)
def test_tokens_between_the_rows_of_an_image_are_counted(token_ids: list[int], fits: bool) -> None:
    info = SimulatedExecutor(num_blocks=8, block_size=4, media_bytes=100).info
    item = MediaItem(
        digest=b"x", start=1, num_tokens=5, num_between=1, cost=1, shape=(), pixels=b"x"
    )
    prompt = MediaPrompt(token_ids=token_ids, items=(item,))
    with nullcontext() if fits else pytest.raises(InvalidRequestError, match="4 placeholders"):
        check_media(prompt, SamplingParams(), info)


def test_an_image_is_refused_if_no_step_has_room_for_its_tokens() -> None:
    """The start has checked the token budget for the largest such image of the model."""
    info = SimulatedExecutor(num_blocks=8, block_size=4, media_bytes=100).info
    assert info.media is not None
    info = replace(info, media=replace(info.media, largest_span_tokens=3))

    def check(num_tokens: int, *, is_whole: bool) -> None:
        item = MediaItem(
            digest=b"x",
            start=1,
            num_tokens=num_tokens,
            cost=1,
            shape=(),
            pixels=b"x",
            is_whole=is_whole,
        )
        prompt = MediaPrompt(token_ids=[1, *[PLACEHOLDER] * num_tokens], items=(item,))
        check_media(prompt, SamplingParams(), info)

    check(3, is_whole=True)
    check(4, is_whole=False)
    with pytest.raises(InvalidRequestError, match=r"has 4 tokens .* the model has 3"):
        check(4, is_whole=True)
