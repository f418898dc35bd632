"""The end of a reasoning is forced when its tokens are used up, and not before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokenmill.backends.sampling.processing.base import ProcessedRow, ProcessorSpec
from tokenmill.backends.sampling.processing.thinking_budget import ThinkingBudget
from tokenmill.testing.toy_tokenizer import ToyTokenizer

WORD, OPEN, CLOSE, LATE = 1, [7], [8, 9, 8, 2], 5
PROMPT = [*OPEN, *CLOSE, WORD]
"""An earlier turn had a reasoning, too."""


def spec_of(vocab_size: int) -> ProcessorSpec:
    tokenizer = ToyTokenizer(vocab_size)
    return ProcessorSpec(vocab_size=vocab_size, tokenizer=tokenizer, device=torch.device("cpu"))


def generate(budget: int, *, is_open: bool, wanted: dict[int, int], count: int = 12) -> list[int]:
    """The answer of a model that wants WORD everywhere but at these places of the answer."""
    processor = ThinkingBudget(spec_of(10))
    limit = {"max_tokens": budget, "start": OPEN, "end": CLOSE, "is_open": is_open}
    arguments: Any = {"thinking_budget": limit}
    ThinkingBudget.check(arguments)
    state, tokens = processor.begin(arguments), list(PROMPT)
    while len(tokens) < len(PROMPT) + count:
        logits_gv = torch.zeros(1, 10)
        logits_gv[0, wanted.get(len(tokens) - len(PROMPT), WORD)] = 1.0
        row = ProcessedRow(state=state, token_ids=tokens, num_prompt_tokens=len(PROMPT))
        processor.apply(logits_gv, [row])
        tokens.append(int(logits_gv.argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_end_is_forced_after_the_budget(budget: int) -> None:
    rest = [WORD] * (8 - budget)
    assert generate(budget, is_open=True, wanted={}) == [WORD] * budget + CLOSE + rest
    opened = generate(budget, is_open=False, wanted={1: OPEN[0]}, count=14)
    assert opened == [WORD, *OPEN, *[WORD] * budget, *CLOSE, *rest]


def test_an_answer_without_reasoning_is_free() -> None:
    assert generate(1, is_open=False, wanted={}) == [WORD] * 12
    late = {9: OPEN[0]}
    assert generate(1, is_open=False, wanted=late) == [WORD] * 9 + OPEN + [WORD] * 2


def test_a_reasoning_that_ends_in_time_is_followed_by_a_free_answer() -> None:
    wanted = dict(enumerate(CLOSE, start=2))
    assert generate(6, is_open=True, wanted=wanted) == [WORD] * 2 + CLOSE + [WORD] * 6


def test_an_end_that_has_begun_is_completed() -> None:
    wanted = dict(enumerate(CLOSE[:3], start=2))
    assert generate(5, is_open=True, wanted=wanted) == [WORD] * 2 + CLOSE + [WORD] * 6


def test_ids_outside_the_vocabulary_end_the_request_alone() -> None:
    processor = ThinkingBudget(spec_of(3))
    with pytest.raises(ValueError, match="not in the vocabulary"):
        processor.begin(ThinkingBudget.example)
