"""The flat layout of one step, number by number."""

from __future__ import annotations

from typing import Any

import torch

from tokenmill.backends.state.input_batch import InputBatch, build_input_batch
from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.plan import Grant, RequestStart

from ..tiny import CPU, GREEDY


def build(*rows: tuple[Any, ...]) -> InputBatch:
    """Of (tokens, start, tokens to compute, blocks, samples, drafts if any) per request, in blocks
    of 4.

    Token number p of request i is 10 * i + p.
    """
    grants, states = [], []
    for i, (num_known, start, num_tokens, blocks, samples, *drafts) in enumerate(rows):
        known = RequestStart(
            engine_id=str(i),
            token_ids=tuple(10 * i + p for p in range(num_known)),
            num_prompt_tokens=num_known,
            sampling_params=GREEDY,
            seed=0,
            stop_token_ids=(),
        )
        grant = Grant(
            engine_id=str(i),
            start=start,
            num_tokens=num_tokens,
            new_block_ids=(blocks,),
            samples=samples,
            num_draft_tokens=len(drafts[0]) if drafts else 0,
        )
        state = RequestState(known, start, vocab_size=100)
        if drafts:
            state.propose(drafts[0], None)
        state.advance(grant, block_size=4, num_blocks=20)
        grants.append(grant)
        states.append(state)
    return build_input_batch(grants, states, 4, CPU)


def test_decodes_stand_first_and_every_number_follows_from_the_plan() -> None:
    batch = build(
        (6, 0, 6, (9, 2), True),  # a whole prompt
        (6, 5, 1, (7, 1), True),  # a decode
        (9, 2, 5, (3, 8), False),  # a chunk within a prompt
        (5, 4, 1, (4, 5), True),  # another decode
    )
    assert batch.grant_order == [1, 3, 0, 2]
    assert batch.token_ids_t.tolist() == [15, 34, *range(6), *range(22, 27)]
    assert batch.positions_t.tolist() == [5, 4, *range(6), *range(2, 7)]
    assert batch.sampled == [0, 1, 2]
    assert batch.sampled_rows_r.tolist() == [0, 1, 7]
    layout = batch.attention
    assert layout.num_decodes == 2
    assert layout.query_start_loc.tolist() == [0, 1, 2, 8, 13]
    assert layout.seq_lens.tolist() == layout.seq_lens_host == [6, 5, 6, 7]
    assert layout.query_lens_host == [1, 1, 6, 5]
    assert layout.block_tables_bm.tolist() == [[7, 1], [4, 5], [9, 2], [3, 8]]
    slots = [4 + 1, 20, *range(36, 40), 8, 9, 14, 15, 32, 33, 34]
    assert layout.slot_mapping_t.tolist() == slots


def test_tensors_have_the_types_that_attention_backends_are_promised() -> None:
    layout = build((6, 5, 1, (7, 1), True), (3, 0, 3, (2,), True)).attention
    for tensor in (layout.query_start_loc, layout.seq_lens, layout.block_tables_bm):
        assert tensor.dtype is torch.int32
    assert layout.slot_mapping_t.dtype is torch.int64
    assert layout.block_tables_bm.tolist() == [[7, 1], [2, 0]]


def test_drafts_follow_the_known_tokens_and_each_has_a_sampled_row() -> None:
    batch = build(
        (6, 0, 6, (9, 2), True),
        (6, 5, 3, (7, 1), True, (71, 72)),
        (6, 5, 1, (3, 4), True),
        (9, 2, 5, (5, 8), False),
        (7, 4, 4, (6, 10), True, (73,)),
    )
    assert batch.grant_order == [2, 0, 1, 3, 4]
    assert batch.token_ids_t.tolist() == [25, *range(6), 15, 71, 72, *range(32, 37), 44, 45, 46, 73]
    assert batch.positions_t.tolist() == [5, *range(6), 5, 6, 7, *range(2, 7), 4, 5, 6, 7]
    assert batch.sampled == [0, 1, 2, 4]
    assert batch.sampled_rows_r.tolist() == [0, 6, 7, 8, 9, 17, 18]


def test_a_step_may_sample_nothing() -> None:
    batch = build((6, 0, 3, (7,), False))
    assert batch.sampled == [] and batch.sampled_rows_r.tolist() == []


def test_each_group_of_layers_has_block_tables_and_slots_of_its_own() -> None:
    known = RequestStart(
        engine_id="0",
        token_ids=tuple(range(20)),
        num_prompt_tokens=20,
        sampling_params=GREEDY,
        seed=0,
        stop_token_ids=(),
    )
    state = RequestState(known, 12, vocab_size=100, num_groups=2)
    grant = Grant(
        engine_id="0",
        start=12,
        num_tokens=6,
        new_block_ids=((3, 1, 4, 15, 9), (2, 6, 5)),
        num_passed_blocks=(0, 2),
        samples=False,
    )
    state.advance(grant, block_size=4, num_blocks=20)
    layout = build_input_batch([grant], [state], 4, CPU).attention
    first, second = layout.by_group
    assert first is layout
    assert first.block_tables_bm.tolist() == [[3, 1, 4, 15, 9]]
    assert first.slot_mapping_t.tolist() == [60, 61, 62, 63, 36, 37]
    assert second.block_tables_bm.tolist() == [[2, 2, 2, 6, 5]]
    assert second.slot_mapping_t.tolist() == [24, 25, 26, 27, 20, 21]
    assert second.seq_lens is first.seq_lens
