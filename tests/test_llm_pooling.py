"""LLM.embed, encode, score and classify: vLLM's methods for what is not generation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tokenmill import (
    LLM,
    EmbeddingRequestOutput,
    InvalidRequestError,
    PoolingParams,
    PoolingRequestOutput,
    RequestFailedError,
    ScoringRequestOutput,
)

from .api.serving import SteeredExecutor, toy_engine

RAW = PoolingParams(use_activation=False)


@pytest.fixture
def executor() -> SteeredExecutor:
    return SteeredExecutor()


@pytest.fixture
def llm(
    monkeypatch: pytest.MonkeyPatch, executor: SteeredExecutor, request: pytest.FixtureRequest
) -> Iterator[LLM]:
    """An LLM without a model. The state of a token is (its id, its position plus 1)."""
    monkeypatch.setattr(
        "tokenmill.llm.AsyncEngine",
        lambda model, *, plugins=(), **options: toy_engine(executor, **options),
    )
    with LLM(**getattr(request, "param", {})) as llm:
        yield llm


def test_embeddings_have_the_length_1_and_come_in_order(llm: LLM) -> None:
    found = llm.embed(["abc", [100], {"prompt": "e"}])
    assert all(type(one) is EmbeddingRequestOutput for one in found)
    assert [one.outputs.embedding for one in found] == [
        pytest.approx((token / math.hypot(token, place), place / math.hypot(token, place)))
        for token, place in [(99, 3), (100, 1), (101, 1)]
    ]
    assert found[0].outputs.hidden_size == 2 and found[0].finished
    assert found[0].prompt_token_ids == (97, 98, 99)


def test_pooling_params_say_how_embeddings_are_returned(llm: LLM) -> None:
    short = PoolingParams(use_activation=False, dimensions=1)
    cut = PoolingParams(use_activation=False, truncate_prompt_tokens=2)
    found = llm.encode(["abc"] * 3, [RAW, short, cut])
    assert all(type(one) is PoolingRequestOutput for one in found)
    assert [one.outputs.data for one in found] == [(99.0, 3.0), (99.0,), (99.0, 2.0)]


@pytest.mark.parametrize("llm", [{"pooling": "mean"}], indirect=True)
def test_the_engine_s_pooling_is_used(llm: LLM) -> None:
    [found] = llm.embed("ac", pooling_params=RAW)
    assert found.outputs.embedding == (98.0, 1.5)


def test_a_score_is_the_cosine_of_one_text_with_each_or_of_pairs(llm: LLM) -> None:
    ones = llm.score("abc", ["abc", "a"])
    assert all(type(one) is ScoringRequestOutput for one in ones)
    cosine = (99 * 97 + 3 * 1) / math.hypot(99, 3) / math.hypot(97, 1)
    assert [one.outputs.score for one in ones] == pytest.approx([1.0, cosine])
    pairs = llm.score(["a", "abc"], ["abc", "abc"], pooling_params=RAW)
    assert [one.outputs.score for one in pairs] == pytest.approx([cosine, 1.0])
    assert llm.score(["a"], []) == llm.score([], []) == []
    with pytest.raises(ValueError, match="2 and 3 texts"):
        llm.score(["a"] * 2, ["a"] * 3)


def test_what_no_model_can_do_is_refused_with_what_this_one_can(llm: LLM) -> None:
    can = r"another kind of model: simulated .* can generate, chat, embed and score$"
    with pytest.raises(InvalidRequestError, match=rf"^classify needs {can}"):
        llm.classify(["abc"])
    with pytest.raises(InvalidRequestError, match=rf"^pooling_task 'token_classify' needs {can}"):
        llm.encode("abc", pooling_task="token_classify")


@pytest.mark.parametrize("dimensions", [0, 3, True, 1.5])
def test_wrong_dimensions_are_refused_by_name(llm: LLM, dimensions: Any) -> None:
    with pytest.raises(InvalidRequestError, match="dimensions") as found:
        llm.embed("abc", pooling_params=PoolingParams(dimensions=dimensions))
    assert found.value.param == "dimensions"


@pytest.mark.parametrize("llm", [{"request_timeout": 0.05}], indirect=True)
def test_a_prompt_that_is_not_computed_in_time_is_an_error(
    llm: LLM, executor: SteeredExecutor
) -> None:
    executor.step_seconds = 0.2
    with pytest.raises(RequestFailedError, match="request_timeout"):
        llm.embed(["a" * 900] * 4)
