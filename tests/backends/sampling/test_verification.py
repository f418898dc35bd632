"""Drafts leave the distribution of what is generated as it was: chi-square tests against exact
enumeration of the next three tokens, over as many steps as it takes to generate them.

Every setting meets a third of the drafters, one with torch and one with native operations;
`make soak` adds the others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch

from tokenmill.backends.running.outcome import Outcome, read_outcomes
from tokenmill.backends.sampling import verification
from tokenmill.backends.sampling.batch import SamplingBatch
from tokenmill.backends.sampling.drawing import draw
from tokenmill.backends.sampling.noise import Purpose, uniform
from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.requests.sampling_params import SamplingParams

from .sampling_with import OPS, make_ops, sample_batch, sampling_with
from .test_sampler import CPU, distribution, make_state

VOCAB_SIZE = 6
PROMPT = (4, 1, 4)
NUM_TOKENS = 3
LOGITS_VV = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 1.5
"""Of the model: they depend on the token before."""

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "all three": {"top_k": 4, "top_p": 0.9, "min_p": 0.05, "temperature": 1.7},
    "repetition": {"repetition_penalty": 1.6},
    "presence and frequency": {"presence_penalty": 0.9, "frequency_penalty": 0.6},
    "bias": {"logit_bias": {0: -3.0, 5: 2.0}},
    "min_tokens": {"min_tokens": 2},
    "everything": {
        "temperature": 1.3,
        "top_k": 5,
        "top_p": 0.95,
        "logit_bias": {2: 1.5},
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.3,
        "min_tokens": 1,
    },
    "top_n_sigma": {"top_n_sigma": 1.2, "temperature": 2.0},
}
STOPS = (0, 3)
"""Not sampled before min_tokens."""


@pytest.fixture(autouse=True, params=OPS)
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with sampling_with(make_ops(request.param)):
        yield


Tables = Callable[[SamplingParams], torch.Tensor]


def softmax(logits_vv: torch.Tensor) -> Tables:
    return lambda params: logits_vv.softmax(dim=1)


def certain_zeros(params: SamplingParams) -> torch.Tensor:
    """Only every other token is ever drafted."""
    q_vv = LOGITS_VV.softmax(dim=1)
    q_vv[:, ::2] = 0
    return q_vv / q_vv.sum(dim=1, keepdim=True)


def the_target_itself(params: SamplingParams) -> torch.Tensor:
    """But for what depends on the tokens before the last."""
    rows = [distribution(row, params, PROMPT, ()) for row in LOGITS_VV.tolist()]
    return torch.tensor(rows)


DRAFTERS: dict[str, Tables | None] = {
    "equal": the_target_itself,
    "near": softmax(LOGITS_VV + 0.3 * LOGITS_VV.flip(0)),
    "far": softmax(-LOGITS_VV),
    "flat": softmax(torch.zeros(VOCAB_SIZE, VOCAB_SIZE)),
    "zeros": certain_zeros,
    "certain": None,
}


def new_state(params: SamplingParams, seed: int) -> RequestState:
    return make_state(params, prompt=PROMPT, seed=seed, vocab_size=VOCAB_SIZE, stop_token_ids=STOPS)


def draft(
    states: Sequence[RequestState],
    q_vv: torch.Tensor | None,
    num_tokens: int,
    said_vv: torch.Tensor | None = None,
) -> None:
    """Drawn from a table by the token before, or so it is said; without one, the likeliest ones."""
    last_s = torch.tensor([state.token_ids[-1] for state in states])
    seeds_s = torch.tensor([state.start.seed for state in states])
    begin_s = torch.tensor([len(state.token_ids) for state in states])
    tokens, probs = [], []
    for i in range(num_tokens):
        if q_vv is None:
            last_s = LOGITS_VV.argmax(dim=1)[last_s]
        else:
            probs.append((q_vv if said_vv is None else said_vv)[last_s])
            last_s = draw(q_vv[last_s], uniform(seeds_s, begin_s + i, Purpose.DRAFT))
        tokens.append(last_s)
    probs_skv = torch.stack(probs, dim=1) if probs else None
    for s, token_ids in enumerate(torch.stack(tokens, dim=1).tolist()):
        states[s].propose(token_ids, None if probs_skv is None else probs_skv[s])


def verify(states: Sequence[RequestState]) -> list[Outcome]:
    """One step of all."""
    before = [
        token_id for state in states for token_id in (state.token_ids[-1], *state.draft_token_ids)
    ]
    positions = [
        len(state.token_ids) + i for state in states for i in range(len(state.draft_token_ids) + 1)
    ]
    batch = SamplingBatch(states, VOCAB_SIZE, CPU)
    outcomes = read_outcomes(
        states, sample_batch(LOGITS_VV[before], batch, torch.tensor(positions))
    )
    for outcome in outcomes:
        outcome.state.settle(outcome.token_ids)
    return outcomes


def generate(
    params: SamplingParams,
    drafter: Tables | None,
    num_drafts: int,
    num_requests: int,
    said: torch.Tensor | None = None,
) -> list[tuple[int, ...]]:
    """The first tokens of as many requests, with seeds from 0 on."""
    q_vv = None if drafter is None else drafter(params)
    states = [new_state(params, seed) for seed in range(num_requests)]
    waiting = states
    while waiting:
        draft(waiting, q_vv, num_drafts, said)
        verify(waiting)
        waiting = [s for s in waiting if s.num_generated_tokens < NUM_TOKENS]
    return [tuple(s.token_ids[len(PROMPT) :][:NUM_TOKENS]) for s in states]


def enumerate_exactly(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of the first tokens."""
    probs: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(NUM_TOKENS):
        longer = {}
        for output, mass in probs.items():
            logits = LOGITS_VV[output[-1] if output else PROMPT[-1]].tolist()
            if length < params.min_tokens:
                logits = [-1e9 if i in STOPS else x for i, x in enumerate(logits)]
            for token_id, p in enumerate(distribution(logits, params, PROMPT, output)):
                longer[*output, token_id] = mass * p
        probs = longer
    return probs


def deviation(params: SamplingParams, found: Sequence[tuple[int, ...]]) -> float:
    """Chi-square in standard deviations from its expectation; rare sequences count as one."""
    expected: dict[object, float] = defaultdict(float)
    observed: dict[object, int] = defaultdict(int)
    counts = Counter(found)
    for sequence, p in enumerate_exactly(params).items():
        assert p > 0 or not counts[sequence], f"{sequence} is not possible"
        cell = sequence if p * len(found) >= 5 else "rare"
        expected[cell] += p * len(found)
        observed[cell] += counts[sequence]
    statistic = sum((observed[cell] - e) ** 2 / e for cell, e in expected.items() if e > 0)
    freedom = sum(e > 0 for e in expected.values()) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("setting", "drafter", "num_drafts", "each_way"),
    [
        pytest.param(
            setting,
            drafter,
            1 + (i + j) % 4,
            ops,
            marks=[] if i % 3 == j % 3 and (i // 3 + j // 3 + k) % 2 else [pytest.mark.soak],
        )
        for (i, setting), (j, drafter), (k, ops) in product(
            enumerate(SETTINGS), enumerate(DRAFTERS), enumerate(OPS)
        )
    ],
    indirect=["each_way"],
)
def test_drafts_do_not_change_the_distribution(setting: str, drafter: str, num_drafts: int) -> None:
    params = SamplingParams(**SETTINGS[setting])
    found = generate(params, DRAFTERS[drafter], num_drafts, 3000)
    assert abs(deviation(params, found)) < 4.5


def no_subtraction(p_sv: torch.Tensor, q_sv: torch.Tensor, rejected_s: torch.Tensor) -> Any:
    return p_sv


def other_than_the_draft(p_sv: torch.Tensor, q_sv: torch.Tensor, rejected_s: torch.Tensor) -> Any:
    return p_sv.scatter(1, rejected_s.unsqueeze(1), 0.0)


def the_wrong_way_round(p_sv: torch.Tensor, q_sv: torch.Tensor, rejected_s: torch.Tensor) -> Any:
    return (q_sv - p_sv).clamp(min=0) + 1e-9 * p_sv


@pytest.mark.parametrize("each_way", ["torch"], indirect=True)
@pytest.mark.parametrize("wrong", [no_subtraction, other_than_the_draft, the_wrong_way_round])
def test_a_wrong_residual_distribution_is_found(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "residual", wrong)
    params = SamplingParams()
    assert deviation(params, generate(params, DRAFTERS["far"], 2, 3000)) > 10


def test_drafts_that_were_not_drawn_from_what_they_say_are_found() -> None:
    params = SamplingParams()
    found = generate(params, DRAFTERS["far"], 2, 3000, said=torch.full_like(LOGITS_VV, 1 / 6))
    assert deviation(params, found) > 10


@pytest.mark.parametrize("each_way", ["torch"], indirect=True)
def test_noise_that_serves_two_purposes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        verification, "uniform", lambda seeds, positions, purpose=None: uniform(seeds, positions)
    )
    params = SamplingParams()
    assert deviation(params, generate(params, DRAFTERS["near"], 1, 3000)) > 10


@pytest.mark.parametrize("each_way", ["torch"], indirect=True)
def test_a_rejection_by_rounding_alone_draws_another_token_of_the_target() -> None:
    p_sv = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]])
    left_sv = verification.residual(p_sv, p_sv.clone(), torch.tensor([1, 0]))
    assert left_sv.tolist() == [[0.25, 0.0, 0.0], [0.0, 0.5, 0.0]]


def test_drafts_of_the_target_itself_are_all_accepted() -> None:
    states = [new_state(SamplingParams(), i) for i in range(500)]
    draft(states, LOGITS_VV.softmax(dim=1), 4)
    assert {len(outcome.token_ids) for outcome in verify(states)} == {5}


def test_a_draft_is_accepted_as_often_as_both_distributions_allow() -> None:
    p_vv, q_vv = LOGITS_VV.softmax(dim=1), (-LOGITS_VV).softmax(dim=1)
    states = [new_state(SamplingParams(), i) for i in range(5000)]
    draft(states, q_vv, 1)
    rate = sum(len(outcome.token_ids) == 2 for outcome in verify(states)) / len(states)
    last = states[0].start.token_ids[-1]
    expected = float(torch.minimum(p_vv[last], q_vv[last]).sum())
    assert abs(rate - expected) < 4.5 * math.sqrt(expected * (1 - expected) / len(states))


KINDS = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_p=0.7),
    SamplingParams(seed=5, top_k=3, repetition_penalty=1.3),
    SamplingParams(temperature=0, frequency_penalty=1.0, logprobs=2),
    SamplingParams(min_p=0.1, logit_bias={3: 2.0}, temperature=2.0, logprobs=0),
    SamplingParams(min_tokens=9, presence_penalty=1.0, top_k=4),
]


def make_mixed(seed: int, is_certain: bool) -> RequestState:
    """Drafts of 0 to 3 tokens, drawn or certain, for every kind of parameters."""
    state = new_state(KINDS[seed % len(KINDS)], seed)
    if seed % 4:
        draft([state], None if is_certain else LOGITS_VV.flip(0).softmax(dim=1), seed % 4)
    return state


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_request_depends_on_nothing_but_itself(is_certain: bool) -> None:
    """All kinds in one batch, in any order, together and alone."""
    seeds = range(4 * len(KINDS))
    alone = [verify([make_mixed(seed, is_certain)])[0] for seed in seeds]
    for shuffle in range(5):
        order = torch.randperm(
            len(seeds), generator=torch.Generator().manual_seed(shuffle)
        ).tolist()
        together = verify([make_mixed(seed, is_certain) for seed in order])
        assert [o.token_ids for o in together] == [alone[seed].token_ids for seed in order]
        for outcome, seed in zip(together, order, strict=True):
            assert [e.token_id for e in outcome.logprobs] == [
                e.token_id for e in alone[seed].logprobs
            ]
    assert len({len(outcome.token_ids) for outcome in alone}) > 2


@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("is_certain", [True, False])
def test_drafts_do_not_change_the_tokens_of_greedy_and_seeded_requests(
    kind: int, is_certain: bool
) -> None:
    """Nor, while the drafts are certain, those of any other."""
    params = KINDS[kind] if is_certain else KINDS[kind].with_changes(seed=0)
    q_vv = None if is_certain else LOGITS_VV.flip(0).softmax(dim=1)
    runs = []
    for num_drafts in range(5):
        states = [new_state(params, seed) for seed in range(6)]
        waiting = states
        while waiting:
            if num_drafts:
                draft(waiting, q_vv, num_drafts)
            verify(waiting)
            waiting = [s for s in waiting if s.num_generated_tokens < 20]
        runs.append([state.token_ids[:20] for state in states])
    assert all(run == runs[0] for run in runs)
