"""Sampling against exact enumeration in plain Python: distribution, penalties, masks, logprobs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tokenmill.backends.sampling.batch import SamplingBatch
from tokenmill.backends.sampling.sampler import Sampled
from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.plan import RequestStart
from tokenmill.core.requests.sampling_params import SamplingParams

from .sampling_with import OPS, make_ops, sample_batch, sampling_with

CPU = torch.device("cpu")
LOGITS = [2.0, -1.0, 0.5, 0.5, 3.0, -4.0, 1.0, 2.5, -0.5, 0.0, 1.5, -2.0]
PROMPT = (4, 4, 7, 1)
OUTPUT = (7, 2, 7, 7, 9)


@pytest.fixture(autouse=True, params=OPS)
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with sampling_with(make_ops(request.param)):
        yield


def make_state(
    params: SamplingParams,
    *,
    prompt: Sequence[int] = PROMPT,
    output: Sequence[int] = (),
    seed: int = 0,
    vocab_size: int = len(LOGITS),
    stop_token_ids: tuple[int, ...] = (),
) -> RequestState:
    start = RequestStart(
        engine_id="r",
        token_ids=(*prompt, *output),
        num_prompt_tokens=len(prompt),
        sampling_params=params,
        seed=seed,
        stop_token_ids=stop_token_ids,
    )
    return RequestState(start, 0, vocab_size)


def sample_rows(
    logits: torch.Tensor, states: Sequence[RequestState], positions: Sequence[int] | None = None
) -> Sampled:
    """Each state is a row; logits [v] are the same for all."""
    rows = logits.expand(len(states), -1).clone() if logits.dim() == 1 else logits.clone()
    batch = SamplingBatch(states, rows.shape[1], CPU)
    return sample_batch(rows, batch, torch.tensor(positions or [len(PROMPT)] * len(states)))


def sample_seeds(
    logits: torch.Tensor, params: SamplingParams, num_seeds: int, **details: Any
) -> list[int]:
    states = [make_state(params, seed=seed, **details) for seed in range(num_seeds)]
    return sample_rows(logits, states).token_ids


def adjusted(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """Bias and penalties by the definition, one token at a time."""
    counts = Counter(output)
    result = []
    for token_id, logit in enumerate(logits):
        logit += (params.logit_bias or {}).get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        logit -= params.frequency_penalty * counts[token_id]
        logit -= params.presence_penalty * (counts[token_id] > 0)
        result.append(logit)
    return result


def distribution(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The exact probability of each token, by enumeration."""
    raw = adjusted(logits, params, prompt, output)
    if params.top_n_sigma:
        bound = max(raw) - params.top_n_sigma * statistics.pstdev(raw)
        raw = [x if x >= bound else -math.inf for x in raw]
    scaled = [x / params.temperature for x in raw]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    probs = [w / sum(weights) for w in weights]
    probs = [p if p >= params.min_p * max(probs) else 0.0 for p in probs]
    if params.top_k > 0:
        kth = sorted(probs, reverse=True)[: params.top_k][-1]
        probs = [p if p >= kth else 0.0 for p in probs]
    mass, edge = 0.0, 0.0
    for p in sorted(probs, reverse=True):
        if mass < params.top_p * sum(probs):
            mass, edge = mass + p, p
    probs = [p if p >= edge else 0.0 for p in probs]
    return [p / sum(probs) for p in probs]


def chi_square(token_ids: Sequence[int], probs: Sequence[float]) -> float:
    """In standard deviations from its expectation; below 4.5 unless something is wrong."""
    observed = Counter(token_ids)
    assert all(probs[token_id] > 0 for token_id in observed)
    expected = {i: p * len(token_ids) for i, p in enumerate(probs) if p > 0}
    statistic = sum((observed[i] - e) ** 2 / e for i, e in expected.items())
    freedom = len(expected) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom) if freedom else statistic


DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 5},
    "top_k, tie at the edge": {"top_k": 7},
    "top_k beyond the vocabulary": {"top_k": 1000},
    "top_p": {"top_p": 0.8},
    "top_p, first token": {"top_p": 0.01},
    "top_p, nearly all": {"top_p": 0.9999},
    "min_p": {"min_p": 0.1},
    "min_p and top_p": {"min_p": 0.15, "top_p": 0.7},
    "top_k and top_p": {"top_k": 4, "top_p": 0.75},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "top_n_sigma, hot, and top_p": {"top_n_sigma": 1.5, "temperature": 5.0, "top_p": 0.9},
    "all three, hot": {"top_k": 6, "top_p": 0.9, "min_p": 0.2, "temperature": 1.7},
    "bias": {"logit_bias": {0: -3.0, 5: 6.0, 11: 100.0, 4: -100.0}, "temperature": 20.0},
    "repetition": {"repetition_penalty": 1.4},
    "repetition below 1": {"repetition_penalty": 0.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.6},
    "everything": {
        "temperature": 1.3,
        "top_k": 8,
        "top_p": 0.95,
        "min_p": 0.01,
        "logit_bias": {5: 5.0},
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.3,
    },
}


@pytest.mark.parametrize("each_way", ["torch"], indirect=True)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_tokens_are_drawn_with_exactly_their_probability(name: str) -> None:
    """Each way, from the same states: to make them takes most of the time. So each draws at ten
    positions, which are as independent as ten seeds."""
    params = SamplingParams(**DISTRIBUTIONS[name])
    states = [make_state(params, seed=seed, output=OUTPUT) for seed in range(2_000)] * 10
    positions = [9 + i // 2_000 for i in range(len(states))]
    expected = distribution(LOGITS, params, PROMPT, OUTPUT)
    for ops in OPS:
        with sampling_with(make_ops(ops)):
            token_ids = sample_rows(torch.tensor(LOGITS), states, positions).token_ids
        assert abs(chi_square(token_ids, expected)) < 4.5, ops


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.9}, {"top_k": 200, "top_p": 0.95}])
def test_flat_distributions_over_many_tokens_are_drawn_exactly_too(changes: dict[str, Any]) -> None:
    """More tokens are kept than are sorted at first."""
    params = SamplingParams(**changes)
    logits = torch.linspace(-1.5, 1.5, 512)[torch.randperm(512, generator=torch.Generator())]
    token_ids = sample_seeds(logits, params, 5_000, vocab_size=512)
    expected = distribution(logits.tolist(), params, PROMPT, ())
    assert sum(p > 0 for p in expected) > 128
    assert abs(chi_square(token_ids, expected)) < 4.5


def test_positions_draw_independently() -> None:
    """One seed along its sequence sees the same distribution as many seeds at one place."""
    state = make_state(SamplingParams(temperature=1.5), seed=9)
    positions = list(range(20_000))
    token_ids = sample_rows(torch.tensor(LOGITS), [state] * 20_000, positions).token_ids
    expected = distribution(LOGITS, SamplingParams(temperature=1.5), PROMPT, ())
    assert abs(chi_square(token_ids, expected)) < 4.5
    pairs = [12 * a + b for a, b in zip(token_ids[::2], token_ids[1::2], strict=True)]
    assert abs(chi_square(pairs, [a * b for a in expected for b in expected])) < 4.5


MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_p=0.5),
    SamplingParams(top_k=3, repetition_penalty=1.3),
    SamplingParams(temperature=0, frequency_penalty=1.0, logprobs=2),
    SamplingParams(min_p=0.3, logit_bias={3: 4.0}, temperature=2.0),
    SamplingParams(min_tokens=9, presence_penalty=1.0),
    SamplingParams(top_n_sigma=1.0, temperature=3.0),
]


def test_a_row_depends_on_nothing_but_itself() -> None:
    """Rows of every kind, in any order, together and alone, with logits of their own."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(4 * len(MIXED), 320, generator=generator)
    states = [
        make_state(params, output=OUTPUT, seed=seed, vocab_size=320, stop_token_ids=(0, 1, 2))
        for seed, params in enumerate(MIXED * 4)
    ]
    alone = [sample_rows(logits[i], [state]).token_ids[0] for i, state in enumerate(states)]
    for seed in range(5):
        order = torch.randperm(len(states), generator=torch.Generator().manual_seed(seed)).tolist()
        order = order[: len(order) - seed]
        sampled = sample_rows(logits[order], [states[i] for i in order])
        assert sampled.token_ids == [alone[i] for i in order]
        assert set(sampled.logprobs) == {n for n, i in enumerate(order) if i % len(MIXED) == 4}


def test_greedy_takes_the_best_adjusted_logit_and_of_equals_the_lowest_id() -> None:
    tied = torch.tensor([0.0, 2.0, 1.0, 2.0])
    assert sample_rows(
        tied, [make_state(SamplingParams(temperature=0), prompt=(0,))]
    ).token_ids == [1]
    for name, changes in DISTRIBUTIONS.items():
        params = SamplingParams(**changes | {"temperature": 0})
        best = adjusted(LOGITS, params, PROMPT, OUTPUT)
        found = sample_rows(torch.tensor(LOGITS), [make_state(params, output=OUTPUT)]).token_ids
        assert found == [best.index(max(best))], name


@pytest.mark.parametrize("params", [MIXED[3], MIXED[4], MIXED[6]], ids=str)
def test_penalties_follow_the_tokens_as_they_are_sampled(params: SamplingParams) -> None:
    """A state that grew token by token penalizes like one that was started with all of them."""
    logits = torch.tensor(LOGITS)
    grown = make_state(params)
    batch = SamplingBatch([grown], len(LOGITS), CPU)
    for position in range(30):
        output = grown.token_ids[len(PROMPT) :]
        fresh = make_state(params, output=output)
        expected = sample_rows(logits, [fresh], [position]).token_ids
        assert batch.holds([grown])
        found = sample_batch(logits.unsqueeze(0).clone(), batch, torch.tensor([position])).token_ids
        assert found == expected
        grown.settle(found)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_are_not_sampled_before_min_tokens_are_generated(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=3)
    for num_generated in range(5):
        token_ids = sample_seeds(
            torch.tensor(LOGITS),
            params,
            500,
            output=(0,) * num_generated,
            stop_token_ids=(4, 7, 0),
        )
        assert bool({4, 7, 0} & set(token_ids)) == (num_generated >= 3)


def test_a_stop_token_without_a_logit_is_left_alone() -> None:
    params = SamplingParams(temperature=0, min_tokens=3)
    for stops in ((), (12,), (12, 4)):
        token_ids = sample_seeds(torch.tensor(LOGITS), params, 1, stop_token_ids=stops)
        assert token_ids == ([7] if 4 in stops else [4])


def test_logprobs_are_of_the_raw_logits_with_rank_and_the_likeliest_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 300, generator=generator)
    params = [
        SamplingParams(temperature=3.0, logprobs=i % 5, repetition_penalty=1.5, logit_bias={3: 5.0})
        if i % 4
        else SamplingParams()
        for i in range(40)
    ]
    states = [make_state(p, seed=i, vocab_size=300) for i, p in enumerate(params)]
    sampled = sample_rows(logits, states)
    assert set(sampled.logprobs) == {i for i in range(40) if i % 4}
    expected = logits.double().log_softmax(dim=1)
    for row, found in sampled.logprobs.items():
        assert found.token_id == sampled.token_ids[row]
        by_rank = expected[row].sort(descending=True)
        assert found.logprob == pytest.approx(float(expected[row, found.token_id]), abs=1e-5)
        assert int(by_rank.indices[found.rank - 1]) == found.token_id
        assert [i for i, _ in found.top] == by_rank.indices[: row % 5].tolist()
        assert [p for _, p in found.top] == pytest.approx(
            by_rank.values[: row % 5].tolist(), abs=1e-5
        )
    assert len({entry.rank for entry in sampled.logprobs.values()}) > 10


def test_more_logprobs_than_tokens_give_all_tokens() -> None:
    state = make_state(SamplingParams(logprobs=100))
    found = sample_rows(torch.tensor(LOGITS), [state]).logprobs[0]
    assert len(found.top) == len(LOGITS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_reported_and_disturb_no_other(value: float) -> None:
    states = [make_state(params, seed=i) for i, params in enumerate(MIXED)]
    expected = sample_rows(torch.tensor(LOGITS), states).token_ids
    for bad in range(len(states)):
        logits = torch.tensor(LOGITS).repeat(len(states), 1)
        logits[bad, 5] = value
        sampled = sample_rows(logits, states)
        assert sampled.is_finite == [i != bad for i in range(len(states))]
        assert sampled.token_ids[:bad] == expected[:bad]
        assert sampled.token_ids[bad + 1 :] == expected[bad + 1 :]
        assert 0 <= sampled.token_ids[bad] < len(LOGITS)
