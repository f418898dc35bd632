"""What a request's tokens were, counted as they come."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.backends.state.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 300), max_size=300)


def test_many_distinct_tokens_are_counted() -> None:
    counts = TokenCounts([], [])
    for token_id in [*range(500), *range(0, 500, 2)]:
        counts.add(token_id)
    assert counts.token_ids.tolist() == list(range(500))
    assert counts.output_counts.tolist() == [2.0, 1.0] * 250


@given(prompt=TOKENS, early=TOKENS, late=TOKENS)
def test_every_token_is_there_once_with_the_number_of_times_it_was_generated(
    prompt: list[int], early: list[int], late: list[int]
) -> None:
    counts = TokenCounts(prompt, early)
    for token_id in late:
        counts.add(token_id)
    found = dict(zip(counts.token_ids.tolist(), counts.output_counts.tolist(), strict=True))
    generated = Counter(early + late)
    assert len(counts) == len(found) == len(counts.token_ids)
    assert found == {token_id: generated[token_id] for token_id in {*prompt, *early, *late}}


@given(prompt=TOKENS, early=TOKENS, late=TOKENS)
def test_what_would_be_counted_later_leaves_the_counts_as_they_are(
    prompt: list[int], early: list[int], late: list[int]
) -> None:
    counts = TokenCounts(prompt, early)
    before = (counts.token_ids.tolist(), counts.output_counts.tolist())
    found, expected = counts.after(late), TokenCounts(prompt, early + late)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.output_counts.tolist() == expected.output_counts.tolist()
    assert (counts.token_ids.tolist(), counts.output_counts.tolist()) == before
