"""Worker processes get the pixels of images before the plan that encodes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenmill.backends.execution.workers.answers import WorkerStepError
from tokenmill.core.errors import ConfigError
from tokenmill.core.plan import MediaWork, StepPlan
from tokenmill.core.requests.media import MediaItem, MediaPlace
from tokenmill.testing.conformance.executor.worker import SEED, decode_plan, prompt_plan
from tokenmill.testing.simulated.executor import expected_tokens
from tokenmill.testing.simulated.pictures import PLACEHOLDER, with_rows

from . import targets
from .starting import start

SIGHTED = f"{targets.__name__}:{targets.sighted.__name__}"
PROMPT = (20, *[PLACEHOLDER] * 3, 21, *[PLACEHOLDER] * 3, 22)
WHOLE = b"y"
"""The image whose tokens see each other. The simulated executor compares its place with it."""
LARGE = 3 << 20
"""Bytes of pixels: more than the shared memory between the processes has room for."""


def item(name: bytes, start: int) -> MediaItem:
    pixels = name * LARGE
    return MediaItem(
        digest=name,
        start=start,
        num_tokens=3,
        cost=5,
        shape=(),
        pixels=pixels,
        is_whole=name == WHOLE,
    )


def plan(items: tuple[MediaItem, ...], step_id: int) -> StepPlan:
    """A step that starts the request and encodes its items."""
    whole = prompt_plan("a", PROMPT, step_id)
    places = tuple(
        MediaPlace(
            digest=one.digest, start=one.start, num_tokens=one.num_tokens, is_whole=one.is_whole
        )
        for one in items
    )
    [begun] = whole.starts
    work = MediaWork(encode=tuple(one.digest for one in items))
    return replace(whole, starts=(replace(begun, media=places),), media=work)


@pytest.mark.parametrize("size", [1, 2])
def test_all_ranks_encode_the_pixels_that_were_sent_while_a_step_was_open(size: int) -> None:
    items = item(b"x", 1), item(b"y", 5)
    right = expected_tokens(with_rows(PROMPT, items), 2, SEED, 1000)
    executor = start(SIGHTED, size)
    try:
        before = executor.launch(prompt_plan("b", (1, 2, 3), 1, block=8))
        executor.take_media(items)
        first = executor.launch(plan(items, 2))
        second = executor.launch(decode_plan("a", len(PROMPT), 3))
        before.result()
        assert [first.result().token_ids, second.result().token_ids] == [((n,),) for n in right]
    finally:
        executor.close()


def test_a_step_without_its_pixels_raises_and_the_worker_goes_on() -> None:
    executor = start(SIGHTED)
    try:
        with pytest.raises(WorkerStepError):
            executor.launch(plan((item(b"x", 1),), 1)).result()
        result = executor.launch(prompt_plan("b", (1, 2, 3), 2)).result()
        assert result.token_ids == ((expected_tokens((1, 2, 3), 1, SEED, 1000)[0],),)
    finally:
        executor.close()


def test_ranks_that_differ_about_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="the workers differ in what they know about images"):
        start(f"{targets.__name__}:{targets.sighted_differently.__name__}", 2)
