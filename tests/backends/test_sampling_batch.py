"""Which rows are treated how, and when a batch serves the next step too."""

from __future__ import annotations

import math

import torch

from tokenmill.backends.request_state import RequestState
from tokenmill.backends.sampling_batch import SamplingBatch
from tokenmill.core.plan import RequestStart
from tokenmill.core.sampling_params import SamplingParams

VOCAB_SIZE = 100


def make_state(params: SamplingParams) -> RequestState:
    start = RequestStart(
        request_id="r",
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
    assert batch.penalties is not None and batch.penalties.rows.tolist() == [1, 2]
    # The prompt matters to the repetition penalty alone.
    assert [counts.token_ids.tolist() for counts in batch.penalties.counts] == [[3], [1, 2, 3]]
    assert batch.num_logprobs == {2: 0}


def test_a_batch_serves_the_same_requests_in_the_same_order_only() -> None:
    first, second, third = (make_state(SamplingParams()) for _ in range(3))
    batch = SamplingBatch([first, second], VOCAB_SIZE, torch.device("cpu"))
    assert batch.holds([first, second])
    assert not batch.holds([second, first])
    assert not batch.holds([first])
    assert not batch.holds([first, second, third])
    assert not batch.holds([first, make_state(SamplingParams())])
