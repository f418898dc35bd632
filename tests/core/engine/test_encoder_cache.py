"""What the engine says about its encoder cache: events, and the log of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.core.engines import Bench
from tokenmill.core.contract.events import StepDone
from tokenmill.core.contract.explanation import Explanation
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.trace import join_pieces
from tokenmill.core.requests.media import MediaItem
from tokenmill.testing.simulated.pictures import BYTES_PER_TOKEN, PLACEHOLDER

ROWS = 3
"""Tokens of an item."""


class Watch:
    """Keeps the events."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)


def items(names: Sequence[bytes]) -> tuple[MediaItem, ...]:
    """Items with a token between them, from position 1 on."""
    return tuple(
        MediaItem(
            digest=name,
            start=1 + index * (ROWS + 1),
            num_tokens=ROWS,
            cost=5,
            shape=(),
            pixels=name,
        )
        for index, name in enumerate(names)
    )


def ask(bench: Bench, *names: bytes) -> None:
    prompt = [20, *([PLACEHOLDER] * ROWS + [21]) * len(names)]
    bench.add(prompt, 1, media=items(names))


def test_events_and_the_log_name_what_was_needed_found_and_encoded() -> None:
    watch = Watch()
    bench = Bench(
        media_bytes=4 * ROWS * BYTES_PER_TOKEN, enable_prefix_caching=False, plugins=[watch]
    )
    for names in ((b"a", b"b"), (b"b", b"a", b"c"), (b"c", b"c"), ()):
        ask(bench, *names)
        bench.plan()
        bench.commit()
    found = [(s.mm_cache_queries, s.mm_cache_hits, s.num_encoded_tokens) for s in watch.steps]
    assert found == [(2, 0, 2 * ROWS), (3, 2, ROWS), (2, 2, 0), (0, 0, 0)]
    assert bench.core.log is not None
    trace = join_pieces([*bench.core.log.trace(-1e9, bench.now)])
    assert [step.num_encoded_tokens for step in trace.steps] == [2 * ROWS, ROWS, 0, 0]


def test_an_item_that_needs_room_is_encoded_again_later() -> None:
    watch = Watch()
    bench = Bench(media_bytes=ROWS * BYTES_PER_TOKEN, enable_prefix_caching=False, plugins=[watch])
    for name in (b"a", b"a", b"b", b"a"):
        ask(bench, name)
        bench.plan()
        bench.commit()
    assert [step.mm_cache_hits for step in watch.steps] == [0, 1, 0, 0]


def why(bench: Bench, name: str) -> Explanation:
    assert bench.core.log is not None
    [found] = bench.core.log.explain(name, bench.now)
    assert sum(seconds for _, seconds in found.causes) == pytest.approx(found.seconds)
    return found


def compute(bench: Bench, seconds: float, encoder_seconds: float) -> None:
    """A step that takes `seconds`, of them `encoder_seconds` for images."""
    plan = bench.plan()
    assert plan is not None
    result = replace(bench.executor.run(plan), encoder_seconds=encoder_seconds)
    bench.now += seconds
    bench.core.commit(plan, result, bench.now)


def test_an_explanation_names_the_time_of_the_own_images_and_of_those_of_others() -> None:
    bench = Bench(media_bytes=4 * ROWS * BYTES_PER_TOKEN)
    ask(bench)  # no image, one token
    bench.add([30, 31], 2)
    compute(bench, 1.0, 0.0)
    ask(bench, b"a", b"b")  # 9 tokens
    ask(bench, b"b")  # 5 tokens, beside one token of the answer of "1"
    compute(bench, 10.0, 4.0)
    decoding, both, one = (why(bench, name) for name in "123")
    assert both.prompt_images == pytest.approx(4.0 * 2 / 3)
    assert one.prompt_images == pytest.approx(4.0 / 3)
    assert both.prompt_alone == pytest.approx(6.0 * 9 / 15)
    assert both.prompt_others == pytest.approx(10.0 - both.prompt_images - both.prompt_alone)
    assert decoding.decode_others == pytest.approx(4.0 + 6.0 * 14 / 15)
    assert decoding.decode_alone == pytest.approx(6.0 / 15)
    ask(bench, b"a")  # it is known now
    compute(bench, 2.0, 0.0)
    assert (why(bench, "4").prompt_images, why(bench, "4").prompt_alone) == (0.0, 2.0)
