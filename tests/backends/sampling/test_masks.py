"""Allowed tokens and bad words: what they forbid is never sampled, with drafts and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tokenmill.backends.sampling.sampler import NO_TOKEN_LEFT
from tokenmill.core.plan import StepResult
from tokenmill.core.requests.sampling_params import SamplingParams

from ..scripted import ScriptedProposer
from ..tiny import CONFIG, GREEDY, Driver, generate_alone, make_prompt

PROMPTS = {str(i): make_prompt(length, i) for i, length in enumerate((5, 9, 16))}
NUM_TOKENS = 24
SOME = tuple(range(1, CONFIG.vocab_size, 7))
PARAMS = {
    "greedy": SamplingParams(temperature=0, allowed_token_ids=SOME, logprobs=2),
    "seeded": SamplingParams(seed=3, allowed_token_ids=SOME, top_k=5),
    "penalized": SamplingParams(seed=4, allowed_token_ids=SOME, frequency_penalty=1.5),
    "unseeded": SamplingParams(allowed_token_ids=SOME, logit_bias={0: 100.0}),
}


def add(
    driver: Driver,
    engine_id: str,
    params: SamplingParams,
    bad_words: Sequence[Sequence[int]] = (),
) -> None:
    driver.add(engine_id, PROMPTS[engine_id], params, seed=1)
    words = tuple(map(tuple, bad_words))
    driver.starts[-1] = replace(driver.starts[-1], bad_word_ids=words)


def speculate(driver: Driver, *engine_ids: str) -> list[StepResult]:
    results = []
    left = list(engine_ids)
    while left:
        limits = dict.fromkeys(left, 3)
        plan = driver.plan(dict.fromkeys(left), max_draft_tokens=limits, most_drafts=3)
        results.append(driver.run(plan))
        left = [i for i in left if len(driver.known[i]) < len(PROMPTS[i]) + NUM_TOKENS]
    return results


@pytest.mark.parametrize("name", PARAMS)
def test_only_allowed_tokens_are_sampled_and_neighbours_do_not_change(name: str) -> None:
    driver = Driver()
    add(driver, "0", PARAMS[name])
    add(driver, "1", GREEDY)
    masked, plain = driver.generate(NUM_TOKENS, "0", "1")
    assert set(masked) <= set(SOME) and len(set(masked)) > 1
    assert plain == generate_alone(PROMPTS["1"], GREEDY, NUM_TOKENS)
    if name != "unseeded":
        assert masked == generate_alone(PROMPTS["0"], PARAMS[name], NUM_TOKENS, seed=1)


def test_a_bad_word_is_never_completed() -> None:
    """Each token of the plain answer is forbidden once: alone, as a pair, and as three."""
    plain = generate_alone(PROMPTS["0"], GREEDY, NUM_TOKENS)
    words = [plain[:1], plain[3:5], plain[8:11], (*PROMPTS["0"][-1:], plain[0])]
    driver = Driver()
    add(driver, "0", GREEDY, words)
    (got,) = driver.generate(NUM_TOKENS, "0")
    for word in words[:3]:
        assert all(got[i : i + len(word)] != tuple(word) for i in range(NUM_TOKENS))
    assert got != plain


def test_a_bad_word_that_begins_in_the_prompt_may_end_in_the_answer() -> None:
    plain = generate_alone(PROMPTS["0"], GREEDY, NUM_TOKENS)
    driver = Driver()
    add(driver, "0", GREEDY, [(PROMPTS["0"][-1], plain[0])])
    assert driver.generate(1, "0") == [plain[:1]]


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_drafts_change_no_token_of_a_masked_request(accuracy: float) -> None:
    plain = generate_alone(PROMPTS["2"], GREEDY, NUM_TOKENS)
    words = {"0": (), "1": (), "2": [plain[:1], plain[2:4], plain[5:7]]}
    params = {"0": PARAMS["greedy"], "1": PARAMS["seeded"], "2": GREEDY}
    alone = Driver()
    for engine_id in PROMPTS:
        add(alone, engine_id, params[engine_id], words[engine_id])
    alone.generate(NUM_TOKENS + 9, *PROMPTS)
    expected = {engine_id: tuple(known) for engine_id, known in alone.known.items()}
    drafting = Driver(propose=ScriptedProposer(expected, CONFIG.vocab_size, accuracy=accuracy))
    for engine_id in PROMPTS:
        add(drafting, engine_id, params[engine_id], words[engine_id])
    speculate(drafting, *PROMPTS)
    for engine_id, prompt in PROMPTS.items():
        end = len(prompt) + NUM_TOKENS
        assert tuple(drafting.known[engine_id][:end]) == expected[engine_id][:end]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1), SamplingParams(top_p=0.9)])
def test_a_request_without_any_token_left_fails_alone(params: SamplingParams) -> None:
    driver = Driver()
    add(driver, "0", params.with_changes(allowed_token_ids=(5, 6)), [(5,), (6, 6)])
    add(driver, "1", GREEDY)
    results = [driver.step(dict.fromkeys("01")) for _ in range(1)]
    assert results[0].token_ids[0] == (6,) and not results[0].failures
    result = driver.step(dict.fromkeys("01"))
    assert [(f.engine_id, f.message) for f in result.failures] == [("0", NO_TOKEN_LEFT)]
    assert result.token_ids[0] == () and len(result.token_ids[1]) == 1


def test_named_tokens_come_with_their_logprobs() -> None:
    driver = Driver()
    full = SamplingParams(temperature=0, logprobs=CONFIG.vocab_size)
    add(driver, "0", full)
    driver.add("1", PROMPTS["0"], full.with_changes(logprobs=1, logprob_token_ids=(7, 3, 150)))
    result = driver.step(dict.fromkeys("01"))
    assert result.logprobs is not None
    known, named = dict(result.logprobs[0][0].top), result.logprobs[1][0].top
    assert {token_id for token_id, _ in named} == {3, 7, 150}
    assert [value for _, value in named] == sorted((value for _, value in named), reverse=True)
    assert all(value == pytest.approx(known[token_id], abs=1e-4) for token_id, value in named)
