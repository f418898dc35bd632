"""Which rows are treated how, and when a batch serves the next step too."""

from __future__ import annotations

import math

import pytest
import torch

from tokenmill.backends.sampling.batch import SamplingBatch
from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.plan import RequestStart
from tokenmill.core.requests.sampling_params import SamplingParams

VOCAB_SIZE = 100


def make_state(params: SamplingParams) -> RequestState:
    start = RequestStart(
        engine_id="r",
        token_ids=(1, 2, 3),
        num_prompt_tokens=2,
        sampling_params=params,
        seed=2**63 - 1,
        stop_token_ids=(),
    )
    return RequestState(start, 0, VOCAB_SIZE)


def make_batch(*params: SamplingParams) -> SamplingBatch:
    states = [make_state(p) for p in params]
    return SamplingBatch(states, VOCAB_SIZE, torch.device("cpu"))


def test_a_batch_of_greedy_rows_draws_nothing_whatever_their_filters() -> None:
    batch = make_batch(SamplingParams(temperature=0), SamplingParams(temperature=0, top_p=0.5))
    assert batch.draws == ()


def test_rows_are_grouped_by_what_their_draw_needs() -> None:
    batch = make_batch(
        SamplingParams(top_k=7),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.5),
        SamplingParams(top_p=0.5, min_p=0.25),
        SamplingParams(top_k=VOCAB_SIZE),
    )
    free, filtered = batch.draws
    assert free.filters is None and free.rows.index_g.tolist() == [2, 4]
    assert free.temperature_g1.tolist() == [[0.5], [1.0]]
    assert free.seeds_g.tolist() == [2**63 - 1] * 2
    assert filtered.filters is not None and filtered.rows.index_g.tolist() == [0, 3]
    assert filtered.filters.top_k_r1.tolist() == [[7], [VOCAB_SIZE]]
    assert filtered.filters.top_p_r1.tolist() == [[math.inf], [0.5]]
    assert filtered.filters.min_p_r1.tolist() == [[0.0], [0.25]]


def test_what_nobody_asks_for_is_not_there() -> None:
    batch = make_batch(SamplingParams(), SamplingParams(temperature=0))
    assert batch.bias is None and batch.penalties is None and not batch.adjusts
    assert not batch.min_tokens and not batch.num_logprobs


def test_penalties_and_logprobs_name_the_rows_that_ask() -> None:
    batch = make_batch(
        SamplingParams(),
        SamplingParams(presence_penalty=1.0),
        SamplingParams(repetition_penalty=1.1, logprobs=0),
    )
    assert batch.penalties is not None and batch.penalties.indices.tolist() == [1, 2]
    # The prompt matters to the repetition penalty alone.
    counts = [row.token_counts.token_ids.tolist() for row in batch.penalties.rows]
    assert counts == [[3], [1, 2, 3]]
    assert batch.num_logprobs == {2: 0}


def test_a_batch_serves_the_same_requests_in_the_same_order_only() -> None:
    first, second, third = (make_state(SamplingParams()) for _ in range(3))
    batch = SamplingBatch([first, second], VOCAB_SIZE, torch.device("cpu"))
    assert batch.holds([first, second])
    assert not batch.holds([second, first])
    assert not batch.holds([first])
    assert not batch.holds([first, second, third])
    assert not batch.holds([first, make_state(SamplingParams())])


def test_a_sequence_has_one_row_more_for_each_of_its_drafts() -> None:
    plain, drafted = make_state(SamplingParams()), make_state(SamplingParams(min_tokens=9))
    drafted.propose([5, 6], None)
    batch = SamplingBatch([plain, drafted, plain], VOCAB_SIZE, torch.device("cpu"))
    assert batch.draws[0].rows.index_g.tolist() == [0, 1, 2, 3, 4]
    assert [(i, row.num_generated_tokens) for i, row in batch.min_tokens] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    assert batch.trials is None


@pytest.mark.parametrize(
    ("params", "are_tried"),
    [
        (SamplingParams(), True),
        (SamplingParams(top_p=0.5), True),
        (SamplingParams(seed=7), False),
        (SamplingParams(temperature=0), False),
    ],
)
def test_drafts_are_tried_by_their_probabilities_only_for_requests_without_a_seed(
    params: SamplingParams, are_tried: bool
) -> None:
    states = [make_state(params) for _ in range(3)]
    for state, length in zip(states, (2, 0, 3), strict=True):
        state.propose(
            range(length), torch.ones(length, VOCAB_SIZE) / VOCAB_SIZE if length else None
        )
    batch = SamplingBatch(states, VOCAB_SIZE, torch.device("cpu"))
    assert (batch.trials is not None) is are_tried
    if batch.trials is not None:
        assert batch.trials.rows_n.tolist() == [0, 1, 4, 5, 6]
        assert batch.trials.sequence_n.tolist() == [0, 0, 1, 1, 1]
        assert batch.trials.last_s.tolist() == [1, 4]
        assert [draws.rows.index_g.tolist() for draws in batch.draws] == [[2, 3, 7]]


def test_a_batch_serves_drafts_of_the_same_lengths_and_kinds_only() -> None:
    state = make_state(SamplingParams())
    batch = SamplingBatch([state], VOCAB_SIZE, torch.device("cpu"))
    state.propose([1, 2], None)
    assert not batch.holds([state])
    batch = SamplingBatch([state], VOCAB_SIZE, torch.device("cpu"))
    state.propose([3, 4], None)
    assert batch.holds([state])
    state.propose([3, 4], torch.ones(2, VOCAB_SIZE))
    assert not batch.holds([state])
    state.propose([3], None)
    assert not batch.holds([state])
