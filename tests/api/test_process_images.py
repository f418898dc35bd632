"""The server sends pixels to an engine in a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tokenmill import SamplingParams
from tokenmill.core.errors import OverloadedError
from tokenmill.core.requests.media import MediaItem
from tokenmill.core.requests.media_prompt import MediaPrompt
from tokenmill.core.supervised import link
from tokenmill.core.supervised.link import UNREAD_BYTES
from tokenmill.testing.simulated.pictures import PLACEHOLDER

from .toy_process import MEDIA_BYTES, toy_process

ITEM_BYTES = 1 << 20
NUM_ITEMS = UNREAD_BYTES // ITEM_BYTES + 4
PARAMS = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)


def prompt(seed: int, num_items: int = NUM_ITEMS) -> MediaPrompt:
    """A prompt that has only images."""
    items = []
    for number in range(num_items):
        pixels = hashlib.shake_128(bytes((seed, number))).digest(64) * (ITEM_BYTES // 64)
        digest = hashlib.sha256(pixels).digest()
        fields: dict[str, Any] = {"digest": digest, "start": 1 + number, "pixels": pixels}
        items.append(MediaItem(num_tokens=1, cost=1, shape=(ITEM_BYTES,), **fields))
    return MediaPrompt(token_ids=[9] + [PLACEHOLDER] * num_items, items=tuple(items))


@asynccontextmanager
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv(MEDIA_BYTES, "4096")
    async with toy_process() as engine:
        yield engine


async def answer(engine: Any, prompt: MediaPrompt | str) -> Sequence[int]:
    async for output in engine.generate(prompt, PARAMS):
        found = output
    token_ids: Sequence[int] = found.outputs[0].token_ids
    return token_ids


def test_requests_at_the_same_time_keep_their_own_images(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with process(monkeypatch) as engine:
            alone = [await answer(engine, prompt(seed)) for seed in (1, 2)]
            assert alone[0] != alone[1], "the images decide"
            assert await engine.reset_prefix_cache()
            found = await asyncio.gather(*(answer(engine, prompt(seed)) for seed in (1, 2, 3, 1)))
            assert [*found[:2], found[3]] == [*alone, alone[0]]

    asyncio.run(main())


def test_requests_of_text_are_accepted_while_pixels_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with process(monkeypatch) as engine:
            alone = await answer(engine, "abc")
            sending = asyncio.create_task(answer(engine, prompt(1)))
            while not engine.load().num_running and not sending.done():
                assert await answer(engine, "abc") == alone
            assert len(await sending) == PARAMS.max_tokens

    asyncio.run(main())


def test_a_client_that_leaves_early_harms_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with process(monkeypatch) as engine:
            alone = await answer(engine, prompt(1, 2))
            for turns in range(4):
                leaving = asyncio.create_task(answer(engine, prompt(2 + turns)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
                assert await answer(engine, prompt(1, 2)) == alone

    asyncio.run(main())


def test_images_that_wait_to_be_sent_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would need the memory of the server, as long as the engine does not read."""
    monkeypatch.setattr(link, "SENDING_BYTES", 2 * NUM_ITEMS * ITEM_BYTES)

    async def main() -> None:
        async with process(monkeypatch) as engine:
            requests = (answer(engine, prompt(seed)) for seed in (1, 2, 3))
            first, second, third = await asyncio.gather(*requests, return_exceptions=True)
            assert isinstance(third, OverloadedError)
            assert await answer(engine, prompt(3)) not in (first, second, third)

    asyncio.run(main())
