"""The schedulers: who is granted how many tokens, and in which order."""

from __future__ import annotations

import pytest

from tokenmill.plugins.schedulers.chunked import Chunked
from tokenmill.plugins.schedulers.prefill_first import PrefillFirst

from .steps import FakeStep, decoding, prompt


def grants(scheduler: Chunked | PrefillFirst, step: FakeStep) -> list[tuple[str, int]]:
    scheduler.schedule(step)
    return list(step.grants.items())


def test_chunked_serves_decodes_then_prompts_in_progress_then_waiting_ones() -> None:
    step = FakeStep(
        running=(prompt("p", 20, computed=4), decoding("d"), decoding("e")),
        waiting=(prompt("w"), prompt("x")),
        budget=32,
    )
    assert grants(Chunked(), step) == [("d", 1), ("e", 1), ("p", 16), ("w", 8), ("x", 6)]


def test_chunked_cuts_a_long_prompt_to_what_decodes_leave() -> None:
    step = FakeStep(running=(decoding("d"),), waiting=(prompt("w", 100),), budget=16)
    assert grants(Chunked(), step) == [("d", 1), ("w", 15)]


def test_chunked_does_not_overtake_in_the_queue() -> None:
    step = FakeStep(waiting=(prompt("w"), prompt("x"), prompt("y", 1)), max_num_seqs=1)
    assert grants(Chunked(), step) == [("w", 8)]
    assert step.asked == ["w", "x"]


def test_prefill_first_serves_whole_prompts_and_no_decode_with_them() -> None:
    step = FakeStep(running=(decoding("d"),), waiting=(prompt("w", 20), prompt("x", 12)))
    assert grants(PrefillFirst(), step) == [("w", 20), ("x", 12)]


def test_prefill_first_does_not_cut_a_prompt_that_fits_into_the_next_step() -> None:
    step = FakeStep(waiting=(prompt("w", 20), prompt("x", 20), prompt("y", 2)))
    assert grants(PrefillFirst(), step) == [("w", 20)]


def test_prefill_first_computes_a_very_long_prompt_in_chunks_of_the_full_budget() -> None:
    assert grants(PrefillFirst(), FakeStep(waiting=(prompt("w", 100),))) == [("w", 32)]
    second = FakeStep(running=(decoding("d"), prompt("w", 100, computed=32)))
    assert grants(PrefillFirst(), second) == [("w", 32)]
    last = FakeStep(running=(prompt("w", 100, computed=96),), waiting=(prompt("x"),))
    assert grants(PrefillFirst(), last) == [("w", 4), ("x", 8)]


def test_prefill_first_decodes_when_no_prompt_can_be_computed() -> None:
    step = FakeStep(running=(decoding("d"), decoding("e")), waiting=(prompt("w"),), max_num_seqs=2)
    assert grants(PrefillFirst(), step) == [("d", 1), ("e", 1)]


@pytest.mark.parametrize("scheduler", [Chunked(), PrefillFirst()])
def test_nothing_to_do_is_nothing_granted(scheduler: Chunked | PrefillFirst) -> None:
    assert grants(scheduler, FakeStep()) == []
