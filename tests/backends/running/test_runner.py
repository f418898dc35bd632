"""The runner on a tiny model: tokens depend on nothing but the request, however it is computed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.sampling.noise import uniform
from tokenmill.core.plan import BlockCopies, CopyDirection
from tokenmill.core.requests.sampling_params import SamplingParams

from ..models.dense import compute_logits
from ..tiny import GREEDY, Driver, decoder, dense_tokens, generate_alone, make_prompt

PROMPTS = [make_prompt(length, seed) for seed, length in enumerate((1, 5, 8, 9, 16, 31, 60))]
RANDOM = SamplingParams(temperature=1.3, top_k=30, top_p=0.95, repetition_penalty=1.2)


class Faulty:
    """A decoder whose hidden states or logits are spoilt on demand."""

    def __init__(self) -> None:
        self.config = decoder().config
        self.bad_rows: list[int] = []
        self.bad_value = torch.nan
        self.raises = False

    def forward(self, *args: Any) -> torch.Tensor:
        if self.raises:
            raise RuntimeError("planted")
        return decoder().forward(*args)

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        logits_rv = decoder().compute_logits(hidden_re)
        logits_rv[self.bad_rows, 3] = self.bad_value
        return logits_rv


def faulty_driver() -> tuple[Faulty, Driver]:
    model = Faulty()
    return model, Driver(model=cast(Decoder, model))


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_greedy_tokens_equal_those_of_the_decoder_without_a_cache(block_size: int) -> None:
    for prompt in PROMPTS:
        driver = Driver(block_size=block_size)
        driver.add("a", prompt)
        assert driver.generate(20, "a") == [dense_tokens(prompt, 20)]


@pytest.mark.parametrize("chunk", [1, 3, 8, 13, 59])
def test_a_prompt_in_chunks_gives_the_same_tokens_as_a_whole_one(chunk: int) -> None:
    prompt = PROMPTS[-1]
    driver = Driver()
    driver.add("a", prompt)
    for _ in range((len(prompt) - 1) // chunk):
        result = driver.step({"a": chunk})
        assert result.token_ids == ((),) and result.logprobs is None
    assert driver.generate(20, "a") == [dense_tokens(prompt, 20)]


def test_a_long_sequence_outgrows_its_first_block_table() -> None:
    prompt = make_prompt(200, 50)
    driver = Driver()
    driver.add("a", prompt)
    for _ in range(24):
        driver.step({"a": 8})
    assert driver.generate(20, "a") == [dense_tokens(prompt, 20)]


def test_a_batch_gives_every_request_what_it_gets_alone() -> None:
    driver = Driver()
    ids = [str(i) for i in range(len(PROMPTS))]
    for engine_id, prompt in zip(ids, PROMPTS, strict=True):
        driver.add(engine_id, prompt)
    assert driver.generate(20, *ids) == [dense_tokens(prompt, 20) for prompt in PROMPTS]


def test_steps_of_any_composition_and_order_give_the_same_tokens() -> None:
    """Decodes, prompts and chunks mixed at random, requests joining and leaving."""
    rng = random.Random(1)
    driver = Driver(num_blocks=400)
    waiting = [(f"{n}-{i}", prompt) for n in range(3) for i, prompt in enumerate(PROMPTS)]
    prompts = dict(waiting)
    results = []
    while waiting or driver.known:
        for _ in range(min(len(waiting), rng.randint(0, 2))):
            engine_id, prompt = waiting.pop()
            driver.add(engine_id, prompt)
        chosen = [i for i in driver.known if rng.random() < 0.8 or i in unstarted(driver)]
        rng.shuffle(chosen)
        if chosen:
            driver.step({i: rng.randint(1, uncomputed(driver, i)) for i in chosen})
        for engine_id in list(driver.known):
            generated = driver.known[engine_id][len(prompts[engine_id]) :]
            if len(generated) == 12:
                results.append((tuple(generated), dense_tokens(prompts[engine_id], 12)))
                driver.end(engine_id)
    assert len(results) == len(prompts)
    assert all(generated == expected for generated, expected in results)


def unstarted(driver: Driver) -> set[str]:
    return {start.engine_id for start in driver.starts}


def uncomputed(driver: Driver, engine_id: str) -> int:
    return len(driver.known[engine_id]) - driver.computed[engine_id]


def test_results_stand_in_the_order_of_the_grants() -> None:
    driver = Driver()
    driver.add("long", PROMPTS[5])
    driver.add("decode", PROMPTS[1])
    driver.add("chunk", PROMPTS[6])
    driver.step({"decode": None, "long": 3, "chunk": 7})
    result = driver.step({"chunk": 5, "long": None, "decode": None})
    assert result.token_ids == (
        (),
        dense_tokens(PROMPTS[5], 1),
        dense_tokens(PROMPTS[1], 2)[1:],
    )


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_a_request_that_was_forgotten_and_comes_again_goes_on_as_if_nothing_happened(
    params: SamplingParams,
) -> None:
    prompt, expected = PROMPTS[4], generate_alone(PROMPTS[4], params, 20, seed=3)
    driver = Driver()
    driver.add("a", prompt, params, seed=3)
    driver.add("other", PROMPTS[2])
    first = driver.generate(8, "a", "other")[0]
    known = driver.known["a"]
    driver.end("a")
    driver.step({"other": None})
    driver.add("a", known, params, seed=3, num_prompt_tokens=len(prompt))
    assert first + driver.generate(12, "a", "other")[0] == expected


def test_one_plan_may_end_a_request_and_start_it_again() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[3])
    driver.generate(5, "a")
    known = driver.known["a"]
    driver.end("a")
    driver.add("a", known, num_prompt_tokens=len(PROMPTS[3]))
    assert driver.generate(5, "a") == [dense_tokens(PROMPTS[3], 10)[5:]]


def test_blocks_of_another_request_serve_as_a_prefix() -> None:
    """A start's tokens before its grant are read from blocks that others filled."""
    prefix = make_prompt(24, 77)
    driver = Driver()
    driver.add("a", (*prefix, 1, 2, 3))
    driver.step({"a": None})
    prompt = (*prefix, 9, 8)
    driver.add("b", prompt, num_cached_tokens=24, cached_blocks=driver.blocks["a"][:3])
    assert driver.generate(10, "b") == [dense_tokens(prompt, 10)]


def test_swapped_blocks_come_back_as_they_were() -> None:
    prompt = PROMPTS[5]
    driver = Driver(num_host_blocks=8)
    driver.add("a", prompt)
    driver.add("other", PROMPTS[6])
    driver.generate(4, "a", "other")
    known, blocks = driver.known["a"], tuple(driver.blocks["a"])
    driver.end("a")
    out = BlockCopies(
        direction=CopyDirection.OUT, pairs=tuple(zip(blocks, range(1, 8), strict=False))
    )
    driver.run(driver.plan({"other": None}, copies=(out,)))
    # The freed blocks are overwritten before the request returns to others.
    driver.add("third", PROMPTS[6])
    driver.step({"third": None})
    targets = [driver.free.pop() for _ in blocks]
    back = BlockCopies(
        direction=CopyDirection.IN, pairs=tuple(zip(range(1, 8), targets, strict=False))
    )
    driver.add(
        "a",
        known,
        num_prompt_tokens=len(prompt),
        num_cached_tokens=len(known) - 1,
        cached_blocks=targets,
    )
    result = driver.run(driver.plan({"a": None, "other": None}, copies=(back,)))
    assert result.token_ids[0] == dense_tokens(prompt, 5)[4:]
    assert driver.generate(5, "a") == [dense_tokens(prompt, 10)[5:]]


def test_a_plan_may_be_made_before_the_token_that_it_computes_is_known() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    first = driver.plan({"a": None})
    second = driver.plan({"a": None}, num_in_flight=1)
    tokens = driver.run(first).token_ids[0] + driver.run(second).token_ids[0]
    assert tokens == dense_tokens(PROMPTS[1], 2)


def test_a_seeded_request_does_not_depend_on_its_neighbours() -> None:
    expected = [generate_alone(prompt, RANDOM, 15, seed=i) for i, prompt in enumerate(PROMPTS)]
    assert len(set(expected)) == len(expected)
    ids = [str(i) for i in range(len(PROMPTS))]
    for order in (ids, ids[::-1], ids[3:] + ids[:3]):
        driver = Driver()
        for engine_id in order:
            driver.add(engine_id, PROMPTS[int(engine_id)], RANDOM, seed=int(engine_id))
        driver.add("greedy", PROMPTS[0])
        driver.add("free", PROMPTS[0], SamplingParams(), seed=5)
        generated = driver.generate(15, "greedy", *order, "free")
        assert dict(zip(order, generated[1:-1], strict=True)) == dict(
            zip(ids, expected, strict=True)
        )


def test_a_seeded_request_does_not_depend_on_how_its_prompt_is_cut() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[6], RANDOM, seed=4)
    for _ in range(5):
        driver.step({"a": 11})
    assert driver.generate(15, "a") == [generate_alone(PROMPTS[6], RANDOM, 15, seed=4)]


def test_the_noise_of_a_token_is_keyed_by_its_position_in_the_sequence() -> None:
    prompt = PROMPTS[1]
    driver = Driver()
    driver.add("a", prompt, SamplingParams(), seed=11)
    for token_id in driver.generate(5, "a")[0]:
        with torch.inference_mode():
            probs = compute_logits(decoder(), torch.tensor(prompt))[-1].softmax(dim=0)
        number = uniform(torch.tensor([11]), torch.tensor([len(prompt)]))
        cumulative = probs.double().cumsum(dim=0)
        assert token_id == int(torch.searchsorted(cumulative, number, right=True))
        prompt = (*prompt, token_id)


def test_seeds_differ() -> None:
    tokens = {generate_alone(PROMPTS[2], SamplingParams(), 8, seed=seed) for seed in range(20)}
    assert len(tokens) == 20


PARAMS = {
    "greedy": GREEDY,
    "random": SamplingParams(),
    "filtered": SamplingParams(top_p=0.9, min_p=0.01, top_k=40),
    "everything": SamplingParams(
        top_p=0.9, logprobs=3, frequency_penalty=0.5, logit_bias={3: 1.0}, min_tokens=5
    ),
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", PARAMS)
def test_a_row_that_is_not_finite_fails_alone(name: str, value: float) -> None:
    params = PARAMS[name]
    expected = [generate_alone(PROMPTS[i], params, 8, seed=i) for i in (1, 3)]
    model, driver = faulty_driver()
    for engine_id in ("1", "2", "3"):
        driver.add(engine_id, PROMPTS[int(engine_id)], params, seed=int(engine_id))
    driver.generate(4, "1", "2", "3")
    model.bad_rows, model.bad_value = [1], value
    result = driver.step(dict.fromkeys(("1", "2", "3")))
    assert [failure.engine_id for failure in result.failures] == ["2"]
    assert "not a number" in result.failures[0].message
    assert result.token_ids[1] == ()
    assert result.logprobs is None or result.logprobs[1] == ()
    model.bad_rows = []
    driver.end("2")
    driver.generate(3, "1", "3")
    assert [tuple(driver.known[i][-8:]) for i in ("1", "3")] == expected


def test_a_plan_that_was_open_when_its_request_failed_is_computed_all_the_same() -> None:
    model, driver = faulty_driver()
    driver.add("bad", PROMPTS[1])
    driver.add("good", PROMPTS[2])
    first = driver.plan({"bad": None, "good": None})
    second = driver.plan({"bad": None, "good": None}, num_in_flight=1)
    model.bad_rows = [0]
    assert driver.run(first).failures
    model.bad_rows = []
    driver.run(second)
    assert tuple(driver.known["good"][-2:]) == dense_tokens(PROMPTS[2], 2)


def test_a_step_that_raises_harms_no_other_request() -> None:
    model, driver = faulty_driver()
    driver.add("a", PROMPTS[1], RANDOM, seed=1)
    driver.add("b", PROMPTS[2], RANDOM, seed=2)
    driver.generate(4, "a", "b")
    driver.add("c", PROMPTS[3])
    model.raises = True
    with pytest.raises(RuntimeError, match="planted"):
        driver.step({"c": None, "a": None})
    model.raises = False
    driver.end("a")
    driver.end("c")
    driver.generate(4, "b")
    assert tuple(driver.known["b"][-8:]) == generate_alone(PROMPTS[2], RANDOM, 8, seed=2)
    driver.add("c", PROMPTS[3])
    assert driver.generate(4, "c") == [dense_tokens(PROMPTS[3], 4)]


def test_a_plan_that_was_open_when_a_step_raised_computes_the_other_requests() -> None:
    model, driver = faulty_driver()
    driver.add("a", PROMPTS[1])
    driver.add("b", PROMPTS[2])
    driver.generate(4, "a", "b")
    driver.add("c", PROMPTS[3])
    first = driver.plan({"c": None, "a": None})
    second = driver.plan({"a": 1, "b": 1, "c": 1})
    model.raises = True
    with pytest.raises(RuntimeError, match="planted"):
        driver.run(first)
    model.raises = False
    assert [len(token_ids) for token_ids in driver.run(second).token_ids] == [0, 1, 0]
    driver.end("a")
    driver.end("c")
    driver.generate(3, "b")
    assert tuple(driver.known["b"][-8:]) == dense_tokens(PROMPTS[2], 8)
    driver.add("c", PROMPTS[3])
    assert driver.generate(4, "c") == [dense_tokens(PROMPTS[3], 4)]


def test_logprobs_are_there_only_for_those_who_asked() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    assert driver.step({"a": None}).logprobs is None
    driver.add("b", PROMPTS[2], SamplingParams(temperature=0, logprobs=2))
    driver.add("c", PROMPTS[6])
    result = driver.step({"c": 4, "b": None, "a": None})
    assert result.logprobs is not None
    assert [len(entries) for entries in result.logprobs] == [0, 1, 0]
    entry = result.logprobs[1][0]
    assert (entry.token_id,) == result.token_ids[1]
    assert entry.rank == 1 and len(entry.top) == 2 and entry.top[0][0] == entry.token_id


def test_a_plan_without_grants_only_ends_and_copies() -> None:
    driver = Driver(num_host_blocks=1)
    driver.add("a", PROMPTS[1])
    driver.step({"a": None})
    driver.end("a")
    copies = BlockCopies(direction=CopyDirection.OUT, pairs=((0, 0),))
    assert driver.run(driver.plan({}, copies=(copies,))).token_ids == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 3}, "after the last known token"),
        ({"num_tokens": 6}, "tokens that are known"),
        ({"new_block_ids": ()}, "blocks that it fills"),
        ({"new_block_ids": ((128,),)}, "blocks exist"),
        ({"new_block_ids": ((-1,),)}, "blocks exist"),
        ({"engine_id": "stranger"}, "what it starts"),
    ],
)
def test_a_first_grant_that_cannot_be_right_is_refused(
    change: dict[str, Any], message: str
) -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    plan = driver.plan({"a": None})
    with pytest.raises(AssertionError, match=message):
        driver.run(replace(plan, grants=(replace(plan.grants[0], **change),)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 4}, "in order"),
        ({"start": 6}, "in order"),
        ({"num_tokens": 2}, "tokens that are known"),
        ({"num_tokens": 0}, "tokens that are known"),
        ({"engine_id": "stranger"}, "that were started"),
    ],
)
def test_a_later_grant_that_cannot_be_right_is_refused(
    change: dict[str, Any], message: str
) -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    driver.step({"a": None})
    plan = driver.plan({"a": None})
    with pytest.raises(AssertionError, match=message):
        driver.run(replace(plan, grants=(replace(plan.grants[0], **change),)))


def test_a_request_is_granted_once_per_plan() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    plan = driver.plan({"a": None})
    with pytest.raises(AssertionError, match="each request once"):
        driver.run(replace(plan, grants=plan.grants * 2))


def test_a_request_that_ended_is_forgotten() -> None:
    driver = Driver()
    driver.add("a", PROMPTS[1])
    driver.add("b", PROMPTS[2])
    driver.step({"a": None, "b": None})
    plan = driver.plan({"a": None, "b": None})
    with pytest.raises(AssertionError, match="that were started"):
        driver.run(replace(plan, ended=("a",)))


@pytest.mark.parametrize(
    ("token_id", "params"),
    [(-1, GREEDY), (192, GREEDY), (5, SamplingParams(logit_bias={3: 1.0, 192: 1.0}))],
)
def test_a_token_outside_of_the_vocabulary_is_refused(
    token_id: int, params: SamplingParams
) -> None:
    driver = Driver()
    driver.add("a", (1, token_id, 2), params)
    with pytest.raises(ValueError, match="request a has a token id outside of the vocabulary"):
        driver.step({"a": None})
