"""Prompt lookup: what is found, how far it goes on, and what is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tokenmill.core.contract.providers.speculation import ProposalBatch
from tokenmill.plugins.speculative.ngram import NgramIndex, NgramOptions, NgramSpeculator

from ..core.drafting_plugins import request


def find(text: Sequence[int], most: int = 4, **options: int) -> list[int]:
    speculator = NgramSpeculator(NgramOptions(**options))
    [draft] = speculator.propose(ProposalBatch(requests=[request("a", text, most)]))
    return list(draft.token_ids)


def by_search(text: Sequence[int], most: int, lengths: range) -> list[int]:
    """The definition, without an index."""
    for n in reversed(lengths):
        for end in range(len(text) - 1, n - 1, -1):
            if n <= len(text) and list(text[end - n : end]) == list(text[-n:]):
                drafts = list(text)
                for i in range(most):
                    drafts.append(drafts[end + i])
                return drafts[len(text) :]
    return []


def test_what_followed_the_last_tokens_before_is_drafted() -> None:
    assert find([1, 2, 3, 4, 5, 6, 1, 2]) == [3, 4, 5, 6]
    assert find([1, 2, 3, 4, 5, 6, 1, 2], most=2) == [3, 4]


def test_the_latest_earlier_place_counts() -> None:
    assert find([1, 2, 7, 1, 2, 8, 1, 2], most=1) == [8]


def test_a_longer_match_goes_before_a_later_one() -> None:
    assert find([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], most=1) == [7]


def test_nothing_is_drafted_after_tokens_that_are_new() -> None:
    assert find([1, 2, 3, 4]) == []
    assert find([1, 2, 1, 3]) == []
    assert find([1]) == [] and find([]) == []


def test_a_loop_goes_on_as_a_loop_past_the_known_tokens() -> None:
    assert find([9, 1, 2, 3, 1, 2, 3], most=8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert find([4, 4, 4], most=5) == [4] * 5


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, range(2, 5)),
        ({"prompt_lookup_max": 1}, range(1, 2)),
        ({"prompt_lookup_max": 3}, range(2, 4)),
        ({"prompt_lookup_min": 6}, range(6, 7)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 7}, range(1, 8)),
    ],
)
def test_lengths_follow_the_options(options: dict[str, int], lengths: range) -> None:
    assert NgramOptions(**options).lengths == lengths


@pytest.mark.parametrize("lengths", [range(1, 2), range(1, 4), range(2, 5), range(3, 4)], ids=str)
def test_the_index_finds_what_a_search_would_however_tokens_come(lengths: range) -> None:
    rng = random.Random(1)
    for _ in range(40):
        index, text = NgramIndex(lengths), [rng.randrange(4) for _ in range(rng.randint(0, 20))]
        for _ in range(10):
            most = rng.randint(1, 8)
            assert list(index.continuation(text, most)) == by_search(text, most, lengths)
            text += [rng.randrange(4) for _ in range(rng.choice((0, 1, 3, 12)))]


def test_what_a_request_said_is_forgotten_when_it_ends_or_starts_again() -> None:
    speculator = NgramSpeculator(NgramOptions())

    def draft(text: Sequence[int], **events: tuple[str, ...]) -> Sequence[int]:
        asked = ProposalBatch(requests=[request("a", text)], **events)
        return speculator.propose(asked)[0].token_ids

    text = [1, 2, 3, 1, 2]
    assert draft(text)
    assert not draft([6, 7, 8, 1, 2], started=("a",))
    assert draft(text, ended=("a",), started=("a",))
    speculator.propose(ProposalBatch(requests=[], ended=("a", "never-seen")))
    assert not speculator.indexes


def test_time_is_linear_in_the_tokens() -> None:
    """The first call reads the text once per length, the second only what is new."""

    class Counting(list[int]):
        num_read = 0

        def __getitem__(self, where: Any) -> Any:
            found = super().__getitem__(where)
            self.num_read += len(found) if isinstance(where, slice) else 1
            return found

    index, text = NgramIndex(range(2, 4)), Counting(range(1000))
    index.continuation(text, 4)
    assert 2 * 998 <= text.num_read <= 2 * 1000 + 5
    longer = Counting([*text, 1, 2])
    index.continuation(longer, 4)
    assert 0 < longer.num_read < 30
