"""The suite for logits processors: their arguments, and what they do to rows of logits.

Shape suffixes: g rows of one call, v vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from ....backends.sampling.processing.base import LogitsProcessor, ProcessedRow, ProcessorSpec
from ....core.requests.read_only_collections import ReadOnlyList
from ...toy_tokenizer import ToyTokenizer
from ..suites import suite

VOCAB_SIZE = 64
"""Small, so that tokens repeat."""
SPEC = ProcessorSpec(
    vocab_size=VOCAB_SIZE, tokenizer=ToyTokenizer(VOCAB_SIZE), device=torch.device("cpu")
)
LENGTHS = ((1, 0), (1, 1), (5, 3), (2, 40), (30, 200))
"""Lengths of the sequences: tokens of the prompt, and of the answer."""
ODD_VALUES: Sequence[Any] = (
    None, True, -1, 0, 1, 10**30, 0.5, -1e300, "", "x" * 1000, (), (1, "a"), ((),), (-5,), {},
    {"a": 1},
)  # fmt: skip


def check_it_says_what_it_reads(logits_processor: Any) -> None:
    """Its attributes are valid, and `check` accepts the example; with `always`, also {}."""
    names = logits_processor.arguments
    assert isinstance(names, tuple) and names, f"arguments must be a tuple of names, got {names!r}"
    assert all(isinstance(name, str) and name for name in names), f"not names: {names!r}"
    example = logits_processor.example
    assert isinstance(example, Mapping) and example, f"example is {example!r}, without an argument"
    assert set(example) <= set(names), f"the example has other arguments than {names}"
    assert isinstance(logits_processor.allows_drafts, bool), (
        f"allows_drafts is {logits_processor.allows_drafts!r}"
    )
    assert isinstance(logits_processor.always, bool), f"always is {logits_processor.always!r}"
    reasons = logits_processor.reasons_against(SPEC)
    assert isinstance(reasons, list), f"reasons_against returned {reasons!r}, not a list"
    assert all(isinstance(one, str) and one for one in reasons), f"not strings: {reasons!r}"
    logits_processor.check(dict(example))
    if logits_processor.always:
        logits_processor.check({})
        logits_processor(SPEC).begin({})


def check_arguments_are_accepted_or_refused_with_a_value_error(logits_processor: Any) -> None:
    """`check` raises nothing but ValueError, for each argument with values of every JSON type."""
    for name in logits_processor.arguments:
        for value in ODD_VALUES:
            for arguments in ({name: value}, {**logits_processor.example, name: value}):
                try:
                    logits_processor.check(arguments)
                except ValueError:
                    continue
                except Exception as error:
                    raise AssertionError(
                        f"check({arguments!r:.200}) raised {type(error).__name__}: {error}"
                    ) from error


def check_a_token_is_left_to_sample(logits_processor: Any) -> None:
    """The largest logit of each row is finite, so none is NaN or plus infinity."""
    processor = _made(logits_processor)
    logits_gv = _applied(processor, _sequences())
    is_fine_g = logits_gv.amax(dim=1).isfinite().tolist()
    for (num_prompt, answer), is_fine in zip(LENGTHS, is_fine_g, strict=True):
        assert is_fine, (
            f"no token is left, or a logit is NaN or infinite, after a prompt of {num_prompt} "
            f"tokens and {answer} tokens of the answer"
        )


def check_rows_do_not_change_each_other(logits_processor: Any) -> None:
    """Rows get the same logits together, in another order, and alone."""
    processor = _made(logits_processor)
    sequences = _sequences()
    together_gv = _applied(processor, sequences)
    for order in (range(len(sequences)), reversed(range(len(sequences)))):
        places = list(order)
        for place in places:
            alone_gv = _applied(processor, [sequences[place]], [place])
            assert _equal(alone_gv[0], together_gv[place]), (
                f"row {place} gets other logits with others in the call"
            )
    shuffled = [3, 0, 4, 2, 1]
    got_gv = _applied(processor, [sequences[i] for i in shuffled], shuffled)
    for row, place in enumerate(shuffled):
        assert _equal(got_gv[row], together_gv[place]), "the order of rows changes their logits"


def check_the_same_tokens_give_the_same_logits(logits_processor: Any) -> None:
    """A row that is computed again, even after a preemption, gets the same logits."""
    processor = _made(logits_processor)
    (num_prompt, _), sequence = LENGTHS[3], _sequences()[3]
    state = processor.begin(dict(processor.example))
    for length in range(num_prompt, len(sequence) + 1):
        logits_gv = _logits([length])
        processor.apply(logits_gv, [_row(state, sequence[:length], num_prompt)])
        again_gv = _logits([length])
        fresh = processor.begin(dict(processor.example))
        processor.apply(again_gv, [_row(fresh, sequence[:length], num_prompt)])
        assert _equal(logits_gv, again_gv), (
            f"after {length} tokens a request that was preempted gets other logits"
        )


@suite
class LogitsProcessorConformance:
    """The suite for a logits processor.

    Subclass it as Test..., with a fixture `logits_processor` that returns the processor's class.
    """


def _made(logits_processor: Any) -> LogitsProcessor:
    """A processor for the suite's model. Without one, the test is skipped."""
    try:
        made: LogitsProcessor = logits_processor(SPEC)
    except Exception as error:
        pytest.skip(f"it cannot be made here: {error}")
    return made


def _applied(
    processor: LogitsProcessor,
    sequences: Sequence[Sequence[int]],
    places: Sequence[int] | None = None,
) -> torch.Tensor:
    """The changed logits of some sequences. `places`: which of LENGTHS they are."""
    places = range(len(sequences)) if places is None else places
    rows = [
        _row(processor.begin(dict(processor.example)), sequence, LENGTHS[place][0])
        for place, sequence in zip(places, sequences, strict=True)
    ]
    logits_gv = _logits(places)
    processor.apply(logits_gv, rows)
    return logits_gv


def _row(state: Any, token_ids: Sequence[int], num_prompt: int) -> ProcessedRow:
    return ProcessedRow(
        state=state, token_ids=ReadOnlyList(token_ids), num_prompt_tokens=num_prompt
    )


def _logits(seeds: Sequence[int]) -> torch.Tensor:
    rows = [torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.stack(rows)


def _sequences() -> list[list[int]]:
    """Random tokens; the answers repeat themselves here and there."""
    rng = random.Random(5)
    found = []
    for num_prompt, num_answer in LENGTHS:
        tokens = rng.choices(range(VOCAB_SIZE), k=num_prompt + 7)
        while len(tokens) < num_prompt + num_answer:
            begin = rng.randrange(len(tokens) - 5)
            tokens += [*tokens[begin : begin + 5], rng.randrange(VOCAB_SIZE)]
        found.append(tokens[: num_prompt + num_answer])
    return found


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(torch.equal(left.nan_to_num(nan=7e7), right.nan_to_num(nan=7e7)))
