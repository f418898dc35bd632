"""A request's block table, as plans change it."""

from __future__ import annotations

from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.plan import Grant, RequestStart

from ..tiny import GREEDY

BLOCK_SIZE = 4


def make_state(num_tokens: int, start: int) -> RequestState:
    known = RequestStart(
        engine_id="0",
        token_ids=tuple(range(num_tokens)),
        num_prompt_tokens=num_tokens,
        sampling_params=GREEDY,
        seed=0,
        stop_token_ids=(),
    )
    return RequestState(known, start, vocab_size=100)


def advance(
    state: RequestState, start: int, num_tokens: int, blocks: tuple[int, ...], num_passed: int
) -> list[int]:
    """Apply a grant; returns the block table."""
    grant = Grant(
        engine_id="0",
        start=start,
        num_tokens=num_tokens,
        new_block_ids=(blocks,) if blocks else (),
        num_passed_blocks=(num_passed,),
        samples=start + num_tokens == len(state.token_ids),
    )
    state.advance(grant, BLOCK_SIZE, num_blocks=100)
    return state.block_tables[0].tolist()


def test_blocks_that_the_window_has_passed_become_the_first_that_it_has_not() -> None:
    state = make_state(20, 0)
    assert advance(state, 0, 8, (9, 8), 0) == [9, 8]
    assert advance(state, 8, 8, (7, 6), 1) == [8, 8, 7, 6]
    assert advance(state, 16, 2, (9,), 3) == [6, 6, 6, 6, 9]
    assert advance(state, 18, 2, (), 3) == [6, 6, 6, 6, 9]


def test_a_request_starts_behind_blocks_that_it_never_had() -> None:
    state = make_state(100, 84)
    assert advance(state, 84, 4, (5, 4), 20) == [5] * 21 + [4]
    assert advance(state, 88, 12, (3, 2, 1), 21) == [4] * 22 + [3, 2, 1]
