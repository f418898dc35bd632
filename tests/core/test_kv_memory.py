"""The blocks that a sequence needs, with and without a window."""

from __future__ import annotations

from tokenmill.core.kv_memory import longest_sequence, max_blocks_held

SIZE = 4


def test_a_window_and_a_step_are_counted_at_the_worst_place_in_their_blocks() -> None:
    for window in range(1, 20):
        for step_tokens in range(1, 20):
            spans = (
                -(-(start + step_tokens) // SIZE) - max(0, start + 1 - window) // SIZE
                for start in range(100)
            )
            held = max_blocks_held(1000, block_size=SIZE, window=window, step_tokens=step_tokens)
            assert held == max(spans)


def test_a_short_sequence_or_one_without_a_window_needs_all_of_its_blocks() -> None:
    assert max_blocks_held(5, block_size=SIZE, window=10, step_tokens=8) == 2
    assert max_blocks_held(1000, block_size=SIZE, window=None, step_tokens=8) == 250


def test_a_sequence_is_longer_than_the_memory_if_a_window_and_a_step_fit() -> None:
    assert longest_sequence(1000, 5, block_size=SIZE, windows=(10,), step_tokens=8) == 1000
    assert longest_sequence(1000, 4, block_size=SIZE, windows=(10,), step_tokens=8) == 16
    assert longest_sequence(1000, 5, block_size=SIZE, windows=(None,), step_tokens=8) == 20
    assert longest_sequence(20, 5, block_size=SIZE, windows=(None,), step_tokens=8) == 20


def test_groups_of_layers_share_the_blocks() -> None:
    # A window of 10 tokens and a step of 8 hold at most 5 blocks of 4 tokens.
    for num_blocks, length in [(2, 0), (6, 8), (14, 16), (15, 20), (30, 80)]:
        found = longest_sequence(
            1000, num_blocks, block_size=SIZE, windows=(None, 10, 10), step_tokens=8
        )
        assert found == length
