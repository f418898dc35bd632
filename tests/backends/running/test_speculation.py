"""The runner with drafts: right, wrong or partly right, they change the number of steps alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from tokenmill.backends.state.draft_probs import DraftProbs
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch
from tokenmill.core.plan import StepResult
from tokenmill.core.requests.sampling_params import SamplingParams

from ..models.dense import compute_hidden
from ..scripted import ScriptedProposer
from ..tiny import CONFIG, GREEDY, Driver, decoder, generate_alone, make_prompt
from .test_runner import Faulty

PROMPTS = [make_prompt(length, seed) for seed, length in enumerate((1, 5, 8, 9, 16, 31, 60))]
NUM_TOKENS = 24
STOPS = (3, 50, 90, 120, 170)
PARAMS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=1),
    "unseeded": SamplingParams(top_k=40),
    "logprobs": SamplingParams(temperature=0.8, logprobs=2, seed=2),
    "filtered": SamplingParams(temperature=1.3, top_k=30, top_p=0.95, min_p=0.01, seed=3),
    "penalties": SamplingParams(
        temperature=0, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3
    ),
    "min_tokens": SamplingParams(
        temperature=0, min_tokens=15, logit_bias={i: 9.0 for i in STOPS}, logprobs=0
    ),
}
SCRIPTS: dict[str, Mapping[str, Any]] = {
    "right": {},
    "wrong": {"accuracy": 0.0},
    "partly right": {"accuracy": 0.6},
    "shy": {"accuracy": 0.8, "is_shy": True},
}
IDS = [str(i) for i in range(len(PROMPTS))]


def truths(params: Sequence[SamplingParams]) -> dict[str, tuple[int, ...]]:
    """What each request generates without any drafts, after its prompt."""
    return {i: truth(int(i), params[int(i)]) for i in IDS}


def truth(number: int, params: SamplingParams) -> tuple[int, ...]:
    """The tokens of this prompt and its answer, which is generated once."""
    key = number, repr(params)
    if key not in _TRUTHS:
        driver = Driver()
        driver.add("alone", PROMPTS[number], params, seed=number, stop_token_ids=STOPS)
        driver.generate(NUM_TOKENS + 9, "alone")
        _TRUTHS[key] = tuple(driver.known["alone"])
    return _TRUTHS[key]


_TRUTHS: dict[tuple[int, str], tuple[int, ...]] = {}


def add_all(driver: Driver, params: Sequence[SamplingParams]) -> None:
    for i, prompt in enumerate(PROMPTS):
        driver.add(IDS[i], prompt, params[i], seed=i, stop_token_ids=STOPS)


def speculate(
    driver: Driver, num_drafts: int, *, lookahead: int = 0, most: int = 99
) -> tuple[int, list[StepResult]]:
    """Until every request has its tokens; answers the number of steps, and the results."""
    results: list[StepResult] = []
    left = list(IDS)
    while left:
        limits = dict.fromkeys(left, num_drafts)
        plan = driver.plan(
            dict.fromkeys(left),
            max_draft_tokens=limits,
            num_lookahead_tokens=lookahead,
            most_drafts=most,
        )
        results.append(driver.run(plan))
        for i in [i for i in left if len(driver.known[i]) >= len(PROMPTS[int(i)]) + NUM_TOKENS]:
            left.remove(i)
    return len(results), results


def check(driver: Driver, expected: Mapping[str, Sequence[int]]) -> None:
    for engine_id, prompt in zip(IDS, PROMPTS, strict=True):
        end = len(prompt) + NUM_TOKENS
        assert tuple(driver.known[engine_id][:end]) == tuple(expected[engine_id][:end])


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", PARAMS)
def test_drafts_change_no_token(name: str, script: str) -> None:
    params = [PARAMS[name]] * len(PROMPTS)
    expected = truths(params)
    for block_size, num_drafts in ((8, 3), (16, 8), (32, 1)):
        proposer = ScriptedProposer(expected, CONFIG.vocab_size, **SCRIPTS[script])
        driver = Driver(block_size=block_size, propose=proposer)
        add_all(driver, params)
        num_steps, _ = speculate(driver, num_drafts)
        check(driver, expected)
        if script == "right":
            assert num_steps == -(-(NUM_TOKENS - 1) // (num_drafts + 1)) + 1
        if script == "wrong":
            assert num_steps == NUM_TOKENS


def test_every_kind_of_request_in_one_batch_with_slots_ahead_and_drafts_that_are_cut() -> None:
    """More blocks than are needed come and go with every step; not all that is proposed is
    granted."""
    params = [*PARAMS.values()]
    expected = truths(params)
    for seed in range(4):
        proposer = ScriptedProposer(
            expected, CONFIG.vocab_size, accuracy=0.8, is_shy=True, seed=seed
        )
        driver = Driver(num_blocks=96, propose=proposer)
        add_all(driver, params)
        speculate(driver, 6, lookahead=7, most=3 + seed)
        check(driver, expected)
        held = sum(map(len, driver.blocks.values()))
        assert len(driver.free) + held == 96
        for i in IDS:
            num_tokens = len(driver.known[i]) + driver.proposed.get(i, 0)
            assert len(driver.blocks[i]) == -(-num_tokens // driver.block_size)


def test_logprobs_are_those_of_each_token() -> None:
    params = [SamplingParams(temperature=0, logprobs=3)] * len(PROMPTS)
    expected = truths(params)
    plain = Driver()
    add_all(plain, params)
    _, results = speculate(plain, 0)
    wanted = [
        [entry for result in results for entry in (result.logprobs or ())[i]] for i in range(7)
    ]
    driver = Driver(propose=ScriptedProposer(expected, CONFIG.vocab_size, accuracy=0.7))
    add_all(driver, params)
    found: dict[str, list[Any]] = {i: [] for i in IDS}
    for _ in range(6):
        plan = driver.plan(
            dict.fromkeys(IDS), max_draft_tokens=dict.fromkeys(IDS, 3), most_drafts=3
        )
        result = driver.run(plan)
        assert result.logprobs is not None
        for i, entries in zip(IDS, result.logprobs, strict=True):
            found[i] += entries
    for i, entries in zip(IDS, wanted, strict=True):
        for one, other in zip(found[i], entries, strict=False):
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]


def test_drafts_of_a_step_that_an_open_plan_follows_are_forgotten() -> None:
    expected = truths([GREEDY] * 7)
    proposer = ScriptedProposer(expected, CONFIG.vocab_size)
    driver = Driver(propose=proposer)
    driver.add("1", PROMPTS[1])
    limits = {"1": 4}
    first = driver.plan({"1": None}, max_draft_tokens=limits)
    second = driver.plan({"1": None}, num_in_flight=1, max_draft_tokens=limits)
    assert driver.run(first).num_proposed_tokens == (4,)
    driver.run(second)
    result = driver.run(driver.plan({"1": None}, max_draft_tokens=limits, most_drafts=4))
    assert len(result.token_ids[0]) == 5
    assert driver.known["1"] == list(expected["1"][: len(driver.known["1"])])


def test_only_requests_that_may_have_drafts_and_were_sampled_are_asked_for() -> None:
    expected = truths([GREEDY] * 7)
    proposer = ScriptedProposer(expected, CONFIG.vocab_size)
    driver = Driver(propose=proposer)
    for i in ("1", "2", "3", "6"):
        driver.add(i, PROMPTS[int(i)])
    amounts = {"6": 7, "1": None, "2": None, "3": None}
    plan = driver.plan(amounts, max_draft_tokens={"6": 3, "1": 2, "3": 1})
    result = driver.run(replace(plan, draft_token_budget=17))
    (batch,) = proposer.batches
    assert [(r.engine_id, r.max_draft_tokens) for r in batch.requests] == [("1", 2), ("3", 1)]
    assert batch.token_budget == 17
    assert batch.requests[0].num_prompt_tokens == len(PROMPTS[1])
    assert batch.requests[0].sampling_params == GREEDY
    assert result.num_proposed_tokens == (0, 2, 0, 1)
    assert result.proposal_seconds > 0
    driver.step({"2": None})
    assert len(proposer.batches) == 1


def test_a_proposer_cannot_write_to_the_tokens_of_a_request() -> None:
    """They are the runner's own: a change would be a wrong answer."""
    refused = []

    def propose(batch: ProposalBatch) -> Sequence[Draft]:
        for request in batch.requests:
            with pytest.raises(TypeError, match=r"read-only; change a copy, list\(\.\.\.\)"):
                cast(list[int], request.token_ids).append(1)
            refused.append(request.engine_id)
        return [Draft()] * len(batch.requests)

    driver = Driver(propose=propose)
    driver.add("a", PROMPTS[1])
    driver.run(driver.plan({"a": None}, max_draft_tokens={"a": 3}))
    assert refused == ["a"]


def test_a_runner_without_a_proposer_holds_no_drafts() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    result = driver.run(driver.plan({"a": None}, max_draft_tokens={"a": 3}))
    assert result.num_proposed_tokens is None and result.proposal_seconds == 0


def test_who_started_and_ended_since_is_told_in_the_next_call() -> None:
    calls: list[tuple[set[str], set[str]]] = []

    def propose(batch: ProposalBatch) -> Sequence[Draft]:
        calls.append((set(batch.ended), set(batch.started)))
        return [Draft() for _ in batch.requests]

    driver = Driver(propose=propose)

    def step(*ids: str, asks: bool = True) -> None:
        driver.run(driver.plan(dict.fromkeys(ids), max_draft_tokens=dict.fromkeys(ids, int(asks))))

    driver.add("a", PROMPTS[1])
    driver.add("b", PROMPTS[2])
    step("a", "b")
    assert calls.pop() == (set(), {"a", "b"})
    step("a")
    assert calls.pop() == (set(), set())
    known = driver.known["a"]
    driver.end("a")
    driver.add("c", PROMPTS[3])
    driver.add("short", PROMPTS[0])
    step("c", "short", asks=False)
    driver.end("short")  # nobody ever heard of it
    driver.add("a", known, num_prompt_tokens=5)
    step("a", "b")
    assert calls.pop() == ({"a"}, {"a", "c"})


@pytest.mark.parametrize(
    ("bad_row", "fails"), [(0, True), (1, True), (2, True), (3, False), (4, False)]
)
def test_only_rows_that_are_reached_must_be_finite(bad_row: int, fails: bool) -> None:
    """Two of four drafts are right: rows 0 to 2 count."""
    model: Any = Faulty()
    expected = truths([GREEDY] * 7)["2"]
    wrong = [*expected]
    wrong[11] = (wrong[11] + 1) % CONFIG.vocab_size
    driver = Driver(model=model, propose=ScriptedProposer({"2": wrong}, CONFIG.vocab_size))
    driver.add("2", PROMPTS[2])
    limits = {"2": 4}
    driver.run(driver.plan({"2": None}, max_draft_tokens=limits))
    model.bad_rows = [bad_row]
    plan = driver.plan({"2": None}, max_draft_tokens=limits, most_drafts=4)
    result = driver.run(plan)
    assert bool(result.failures) is fails
    assert result.token_ids == ((),) if fails else result.token_ids == (expected[9:12],)
    if fails:
        assert result.num_proposed_tokens is None


def test_a_request_that_comes_back_has_no_drafts() -> None:
    expected = truths([GREEDY] * 7)
    driver = Driver(propose=ScriptedProposer(expected, CONFIG.vocab_size))
    driver.add("1", PROMPTS[1])
    driver.run(driver.plan({"1": None}, max_draft_tokens={"1": 3}))
    known = driver.known["1"]
    driver.end("1")
    driver.add("1", known, num_prompt_tokens=len(PROMPTS[1]))
    result = driver.run(driver.plan({"1": None}, max_draft_tokens={"1": 3}))
    assert result.token_ids == ((expected["1"][6],),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_draft_tokens": 4, "num_tokens": 5}, "drafts that were proposed"),
        ({"num_draft_tokens": 2}, "tokens that are known"),
        ({"num_draft_tokens": 2, "num_tokens": 2}, "tokens that are known"),
        ({"samples": False}, "verifies all drafts"),
        ({"num_lookahead_tokens": 40}, "blocks that it fills"),
    ],
)
def test_a_grant_of_drafts_that_cannot_be_right_is_refused(
    change: dict[str, Any], message: str
) -> None:
    expected = truths([GREEDY] * 7)
    driver = Driver(propose=ScriptedProposer(expected, CONFIG.vocab_size))
    driver.add("1", PROMPTS[1])
    driver.run(driver.plan({"1": None}, max_draft_tokens={"1": 3}))
    plan = driver.plan({"1": None}, most_drafts=3)
    with pytest.raises(AssertionError, match=message):
        driver.run(replace(plan, grants=(replace(plan.grants[0], **change),)))


def drawn_drafts(num_tokens: int) -> Callable[[ProposalBatch], Sequence[Draft]]:
    """From a flat distribution."""

    def propose(batch: ProposalBatch) -> Sequence[Draft]:
        rng = random.Random(sum(len(r.token_ids) for r in batch.requests))
        probs_kv = torch.full((num_tokens, CONFIG.vocab_size), 1 / CONFIG.vocab_size)
        return [
            Draft(
                token_ids=rng.choices(range(CONFIG.vocab_size), k=num_tokens),
                probs=DraftProbs(probs_kv=probs_kv),
            )
            for _ in batch.requests
        ]

    return propose


@pytest.mark.parametrize("name", ["greedy", "seeded", "penalties"])
def test_drafts_that_were_drawn_change_no_token_of_greedy_and_seeded_requests(name: str) -> None:
    params = [PARAMS[name]] * len(PROMPTS)
    driver = Driver(propose=drawn_drafts(3))
    add_all(driver, params)
    speculate(driver, 3, most=2)
    check(driver, truths(params))


def test_drafts_that_were_drawn_serve_requests_without_a_seed_in_a_mixed_batch() -> None:
    params = [*PARAMS.values()]
    driver = Driver(propose=drawn_drafts(3))
    add_all(driver, params)
    speculate(driver, 3)
    expected = truths(params)
    drawn = [i for i, p in zip(IDS, params, strict=True) if p is PARAMS["unseeded"]]
    for i in IDS:
        end = len(PROMPTS[int(i)]) + NUM_TOKENS
        if i not in drawn:
            assert tuple(driver.known[i][:end]) == expected[i][:end]


@pytest.mark.parametrize(
    "probs",
    [
        object(),
        DraftProbs(probs_kv=torch.ones(2, 5)),
        DraftProbs(probs_kv=torch.ones(1, CONFIG.vocab_size)),
        DraftProbs(probs_kv=torch.ones(2, CONFIG.vocab_size, dtype=torch.float64)),
    ],
)
def test_a_draft_with_probabilities_that_are_none_is_dropped(probs: object) -> None:
    driver = Driver(propose=lambda batch: [Draft(token_ids=(1, 2), probs=probs)])
    driver.add("1", PROMPTS[1], SamplingParams())
    result = driver.run(driver.plan({"1": None}, max_draft_tokens={"1": 2}))
    assert result.num_proposed_tokens is None


def test_a_step_that_raises_takes_the_drafts_of_its_requests_with_it() -> None:
    model: Any = Faulty()
    expected = truths([GREEDY] * 7)
    driver = Driver(model=model, propose=ScriptedProposer(expected, CONFIG.vocab_size))
    for i in ("1", "2"):
        driver.add(i, PROMPTS[int(i)])
    limits = {"1": 3, "2": 3}
    driver.run(driver.plan({"1": None, "2": None}, max_draft_tokens=limits))
    model.raises = True
    with pytest.raises(RuntimeError, match="planted"):
        driver.run(driver.plan({"1": None}, most_drafts=3))
    model.raises = False
    known = [*PROMPTS[1], *generate_alone(PROMPTS[1], GREEDY, 1)]
    driver.end("1")
    driver.add("1", known, num_prompt_tokens=len(PROMPTS[1]))
    plan = driver.plan({"1": None, "2": None}, max_draft_tokens=limits, most_drafts=3)
    assert [len(ids) for ids in driver.run(plan).token_ids] == [1, 4]
    assert driver.known["2"] == list(expected["2"][: len(driver.known["2"])])


class Seeing(ScriptedProposer):
    """Notes what it is told of each request: known tokens, and hidden states."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[tuple[list[int], object]] = []

    def __call__(self, batch: ProposalBatch) -> Sequence[Draft]:
        for request in batch.requests:
            hidden = request.hidden_states
            kept = hidden.clone() if isinstance(hidden, torch.Tensor) else hidden
            self.seen.append((list(request.token_ids), kept))
        return super().__call__(batch)


def test_hidden_states_are_those_that_chose_the_last_tokens() -> None:
    params = [PARAMS["greedy"], PARAMS["seeded"], *[PARAMS["penalties"]] * 5]
    expected = truths(params)
    proposer = Seeing(expected, CONFIG.vocab_size, accuracy=0.7, is_shy=True)
    driver = Driver(propose=proposer, needs_hidden_states=True)
    add_all(driver, params)
    driver.step(dict.fromkeys(IDS) | {IDS[6]: 40})  # the last one's chunk samples nothing
    speculate(driver, 4)
    check(driver, expected)
    most_rows = 0
    with torch.inference_mode():
        for token_ids, hidden_ne in proposer.seen:
            assert isinstance(hidden_ne, torch.Tensor)
            most_rows = max(most_rows, len(hidden_ne))
            right_te = compute_hidden(decoder(), torch.tensor(token_ids[:-1]))
            torch.testing.assert_close(hidden_ne, right_te[-len(hidden_ne) :])
    assert len(proposer.seen) > 50 and most_rows > 2


def test_who_does_not_need_hidden_states_gets_none() -> None:
    proposer = Seeing(truths([GREEDY] * 7), CONFIG.vocab_size)
    driver = Driver(propose=proposer)
    add_all(driver, [GREEDY] * 7)
    speculate(driver, 4)
    assert proposer.seen and all(hidden is None for _, hidden in proposer.seen)
