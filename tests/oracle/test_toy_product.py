"""The product of settings on a toy model: the tokens are those of transformers.

In `make test`, any four choices meet, with some of the prompts; `make check` has the full product,
with all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from . import toy
from .comparison import check_what_took_place, find_near_ties
from .reference import ReferenceCase, gap
from .settings import Setting, alternating_product, full_product

WHOLE, CHUNKS = 256, 24
"""Tokens per step: room for whole prompts, and for parts of most of them."""
QUICK = alternating_product(WHOLE, CHUNKS)


@pytest.fixture(scope="module")
def model() -> Any:
    return toy.make_reference()


@pytest.fixture(scope="module")
def cases(model: Any) -> list[ReferenceCase]:
    return toy.make_cases(model)


def test_the_reference_says_many_different_things(cases: list[ReferenceCase]) -> None:
    assert len({case.token_ids for case in cases}) == len(cases)
    assert len({token for case in cases for token in case.token_ids}) > 50


@pytest.mark.parametrize("setting", QUICK, ids=str)
def test_a_few_have_the_tokens_of_transformers(
    setting: Setting, model: Any, cases: list[ReferenceCase]
) -> None:
    check(setting, model, toy.sample(setting, cases))


@pytest.mark.check
@pytest.mark.parametrize("setting", full_product(WHOLE, CHUNKS), ids=str)
def test_tokens_are_those_of_transformers(
    setting: Setting, model: Any, cases: list[ReferenceCase]
) -> None:
    check(setting, model, toy.shuffled(setting, cases))


def check(setting: Setting, model: Any, chosen: list[ReferenceCase]) -> None:
    served = toy.serve(setting, chosen)
    find_near_ties(partial(gap, model), chosen, served.token_ids)
    check_what_took_place(setting, served)
