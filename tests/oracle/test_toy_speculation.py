"""Settings on a toy model, with drafts: the tokens are those without.

In `make test` any two choices meet, the method and its length among them, with some of the prompts.
In `make check`, with all prompts, every setting meets every other method, each at one length, and
any four choices meet with every method: 120 CPU seconds. `make soak` adds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest

from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.requests.sampling_params import SamplingParams

from ..backends.tiny_checkpoints import write_model
from . import toy
from .comparison import Served, check_what_took_place, find_near_ties
from .reference import ReferenceCase, gap
from .settings import Setting, alternating_product, full_product
from .speculating import LENGTHS, METHODS, Foresight, make_head, speculate
from .test_toy_product import CHUNKS, WHOLE

DRAFT_MODEL, DRAFT_HEAD = "draft-model", "draft-head"
TOY_METHODS = (*METHODS, DRAFT_MODEL, DRAFT_HEAD)
HALVES = alternating_product(WHOLE, CHUNKS), alternating_product(CHUNKS, WHOLE)
CASES = [
    (setting, method, LENGTHS[(i + i // len(LENGTHS)) % len(LENGTHS)])
    for j, method in enumerate(TOY_METHODS)
    for i, setting in enumerate(HALVES[j % 2])
]
QUICK = CASES[::5]
EVERYTHING = list(product(full_product(WHOLE, CHUNKS), TOY_METHODS))
"""`make soak` goes through all lengths of each."""
Serve = Callable[..., Served]
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=7)


@pytest.fixture(scope="module")
def model() -> Any:
    return toy.make_reference()


@pytest.fixture(scope="module")
def cases(model: Any) -> list[ReferenceCase]:
    return toy.make_cases(model)


@pytest.fixture(scope="module")
def seeded_cases(cases: list[ReferenceCase]) -> list[ReferenceCase]:
    """What the engine itself generates without drafts."""
    served = toy.serve(Setting(scheduler="chunked"), cases, sampling=SEEDED)
    pairs = zip(cases, served.token_ids, strict=True)
    return [ReferenceCase(case.name, case.prompt_token_ids, ids) for case, ids in pairs]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """As `toy.serve`, with three things in directories: the toy, a draft model that is sometimes
    right (the toy with other rotary positions), and a head that was fitted to the toy."""
    folder = tmp_path_factory.mktemp("models")
    path = write_model(folder / "target", toy.CONFIG, 0)
    target = open_checkpoint(path)
    other = replace(toy.CONFIG, rope=replace(toy.CONFIG.rope, theta=100.0))
    drafts = {
        DRAFT_MODEL: write_model(folder / DRAFT_MODEL, other, 0),
        DRAFT_HEAD: make_head(path, folder / DRAFT_HEAD, num_tokens=4000, draft_vocab_size=0),
    }

    def with_drafts(
        setting: Setting, cases: list[ReferenceCase], method: str, num_tokens: int, **options: Any
    ) -> Served:
        if method in drafts:
            options["speculative_model"] = str(drafts[method])
            method = DRAFT_MODEL
        options |= speculate(method, num_tokens)
        return toy.serve(setting, cases, target, plugins=[Foresight(cases)], **options)

    return with_drafts


@pytest.mark.parametrize(("setting", "method", "num_tokens"), QUICK, ids=str)
def test_a_few_have_the_tokens_of_transformers(
    setting: Setting,
    method: str,
    num_tokens: int,
    model: Any,
    cases: list[ReferenceCase],
    serve: Serve,
) -> None:
    check_tokens(setting, method, num_tokens, model, toy.sample(setting, cases), serve)


@pytest.mark.check
@pytest.mark.parametrize(("setting", "method", "num_tokens"), CASES, ids=str)
def test_tokens_are_those_of_transformers(
    setting: Setting,
    method: str,
    num_tokens: int,
    model: Any,
    cases: list[ReferenceCase],
    serve: Serve,
) -> None:
    chosen = toy.shuffled(setting, cases)
    check_tokens(setting, method, num_tokens, model, chosen, serve)


def check_tokens(
    setting: Setting,
    method: str,
    num_tokens: int,
    model: Any,
    chosen: list[ReferenceCase],
    serve: Serve,
) -> None:
    served = serve(setting, chosen, method, num_tokens)
    find_near_ties(partial(gap, model), chosen, served.token_ids)
    check_what_took_place(setting, served)
    if method in METHODS or setting.max_num_batched_tokens == WHOLE:
        # Else hardly a token of a step is left, for a draft or for a draft model to catch up with.
        assert 0 < served.num_accepted_tokens < served.num_draft_tokens


@pytest.mark.parametrize(("setting", "method", "num_tokens"), CASES[::13], ids=str)
def test_a_few_seeded_have_the_tokens_without_drafts(
    setting: Setting,
    method: str,
    num_tokens: int,
    seeded_cases: list[ReferenceCase],
    serve: Serve,
) -> None:
    check_seeded(setting, method, num_tokens, toy.sample(setting, seeded_cases), serve)


@pytest.mark.check
@pytest.mark.parametrize(("setting", "method", "num_tokens"), CASES[::13], ids=str)
def test_seeded_tokens_are_those_without_drafts(
    setting: Setting,
    method: str,
    num_tokens: int,
    seeded_cases: list[ReferenceCase],
    serve: Serve,
) -> None:
    check_seeded(setting, method, num_tokens, seeded_cases, serve)


def check_seeded(
    setting: Setting, method: str, num_tokens: int, chosen: list[ReferenceCase], serve: Serve
) -> None:
    served = serve(setting, chosen, method, num_tokens, sampling=SEEDED)
    assert list(served.token_ids) == [case.token_ids for case in chosen]
    check_what_took_place(setting, served)


@pytest.mark.soak
@pytest.mark.parametrize(("setting", "method"), EVERYTHING, ids=str)
def test_tokens_are_right_with_every_length(
    setting: Setting,
    method: str,
    model: Any,
    cases: list[ReferenceCase],
    seeded_cases: list[ReferenceCase],
    serve: Serve,
) -> None:
    for length in LENGTHS:
        chosen = toy.shuffled(setting, cases)
        check_tokens(setting, method, length, model, chosen, serve)
        check_seeded(setting, method, length, seeded_cases, serve)


def test_every_setting_and_every_length_meets_every_choice() -> None:
    assert {(method, length) for _, method, length in CASES} == set(product(TOY_METHODS, LENGTHS))
    settings = [setting for setting, _, _ in CASES]
    assert set(settings) == set(full_product(WHOLE, CHUNKS)) and len(settings) == 4 * 48
    for method in TOY_METHODS:
        met = [astuple(setting) for setting, name, _ in CASES if name == method]
        everything = map(astuple, full_product(WHOLE, CHUNKS))
        assert tuples(met, 4) == tuples(everything, 4), method


def test_any_two_choices_and_every_length_with_every_method_are_among_the_quick_cases() -> None:
    def pairs(cases: Iterable[tuple[Setting, str, int]]) -> set[object]:
        return tuples(((*astuple(setting), method) for setting, method, _ in cases), 2)

    assert pairs(QUICK) == pairs(CASES)
    assert {(method, length) for _, method, length in QUICK} == set(product(TOY_METHODS, LENGTHS))


def tuples(settings: Iterable[tuple[object, ...]], size: int) -> set[object]:
    """All choices of `size` options that occur together."""
    return {some for setting in settings for some in combinations(enumerate(setting), size)}
