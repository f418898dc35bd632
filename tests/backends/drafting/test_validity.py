"""Which slots of a block hold the draft model's half: through hits, new content and swapping."""

from __future__ import annotations

import numpy as np

from tokenmill.backends.drafting.model_runner import BlockTable, DraftValidity
from tokenmill.backends.drafting.sequence import DraftProgress
from tokenmill.core.plan import BlockCopies, CopyDirection


def table(*blocks: int) -> BlockTable:
    return np.array(blocks, dtype=np.int32)


def make(num_blocks: int = 8) -> DraftValidity:
    return DraftValidity(num_blocks, 4, block_size=4)


def test_nothing_is_valid_before_it_was_computed() -> None:
    validity = make()
    assert validity.start([3, 5, 1], 8) == 0
    assert validity.count(table(3, 5, 1)) == 0


def test_what_one_request_computed_is_valid_for_the_next_that_hits_it() -> None:
    validity = make()
    validity.start([3, 5, 1], 0)
    validity.mark(table(3, 5, 1), 0, 10)
    assert validity.count(table(3, 5, 1)) == 10
    assert validity.start([3, 5, 6], 8) == 8


def test_only_the_leading_valid_part_of_a_hit_counts() -> None:
    validity = make()
    validity.start([3, 5, 1], 0)
    validity.mark(table(3, 5, 1), 0, 12)
    validity.clear([5])
    assert validity.start([3, 5, 1, 2], 12) == 4


def test_slots_past_the_hit_get_new_content() -> None:
    validity = make()
    validity.start([3, 5], 0)
    validity.mark(table(3, 5), 0, 8)
    # Of a fully cached prompt the last token is computed all the same.
    assert validity.start([3, 5, 6], 7) == 7
    assert validity.count(table(3, 5)) == 7


def test_gaps_end_what_counts_and_are_closed_from_the_front() -> None:
    validity = make()
    validity.start([0, 1, 2], 0)
    validity.mark(table(0, 1, 2), 0, 3)
    validity.mark(table(0, 1, 2), 3, 9)
    assert validity.count(table(0, 1, 2)) == 9


def test_swapping_moves_validity_with_the_content() -> None:
    validity = make()
    validity.start([3, 5], 0)
    validity.mark(table(3, 5), 0, 6)
    validity.copy(BlockCopies(direction=CopyDirection.OUT, pairs=((3, 0), (5, 1))))
    validity.clear([3, 5])
    validity.copy(BlockCopies(direction=CopyDirection.IN, pairs=((0, 7), (1, 6))))
    assert validity.start([7, 6, 2], 6) == 6
    assert validity.count(table(3)) == 0


def test_a_draft_that_came_true_counts_as_computed() -> None:
    progress = DraftProgress(5, 5, [10, 11, 12])
    progress.catch_up_with([0, 0, 0, 0, 0, 10, 11, 13])
    assert progress.num_computed == 7
    assert progress.ahead == []


def test_the_last_known_token_is_computed_in_any_case() -> None:
    progress = DraftProgress(5, 5, [10])
    progress.catch_up_with([0, 0, 0, 0, 0, 10])
    assert progress.num_computed == 5


def test_drafts_in_slots_that_were_given_back_are_lost() -> None:
    progress = DraftProgress(6, 6, [10, 11, 12])
    progress.keep_slots(8)
    assert progress.ahead == [10, 11]
