"""Embeddings are pooled hidden states: of the whole prompt, however it is cut into steps."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests.pooling import Pooling
from tokenmill.core.requests.sampling_params import SamplingParams

from .serving import Served, serve_engine, toy_engine
from .test_errors import check_error

TEXT = "The sea is calm tonight."


def embed(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/embeddings", json={"input": "abc", "normalize": False} | fields)


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    found = response.json()
    assert [item["index"] for item in found["data"]] == list(range(len(found["data"])))
    return [item["embedding"] for item in found["data"]]


def simulated(text: str, pooling: Pooling) -> list[float]:
    """What the simulated model's hidden states pool to: tokens, and positions plus 1."""
    states = [(float(ord(letter)), index + 1.0) for index, letter in enumerate(text)]
    if pooling is Pooling.LAST:
        return list(states[-1])
    return [sum(values) / len(states) for values in zip(*states, strict=True)]


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{real.url}/v1", api_key="x", max_retries=0
    ) as client:  # a strict client refuses the base64 text that it asks for
        yield client


def test_official_client_gets_unit_vectors_that_tell_texts_apart(
    client: openai.OpenAI, real: Served
) -> None:
    texts = [TEXT, "Tonight the sea is calm.", "def add(a, b): return a + b"]
    model = real.engine.model_name
    answer = client.embeddings.create(model=model, input=texts)
    sea, calm, code = (item.embedding for item in answer.data)
    assert len(sea) == real.engine.info.hidden_size
    assert math.hypot(*sea) == pytest.approx(1, abs=1e-5)
    near, far = (sum(a * b for a, b in zip(sea, other, strict=True)) for other in (calm, code))
    assert far < near < 1
    ids = [real.engine.tokenizer.encode(text) for text in texts]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    by_ids = client.embeddings.create(model=model, input=ids, encoding_format="float")
    for first, second in zip(answer.data, by_ids.data, strict=True):
        assert first.embedding == pytest.approx(second.embedding, abs=1e-5)


def test_base64_has_the_same_numbers_and_dimensions_cut_them(http: httpx.Client) -> None:
    ((token, place),) = vectors(embed(http))
    packed = embed(http, encoding_format="base64").json()["data"][0]["embedding"]
    assert struct.unpack("<2f", base64.b64decode(packed)) == (token, place)
    assert vectors(embed(http, dimensions=1)) == [[token]]
    assert vectors(embed(http, dimensions=1, normalize=True)) == [[1.0]]
    assert "2 dimensions" in check_error(embed(http, dimensions=3), 400, "dimensions")["message"]


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("budget", [256, 5])
def test_a_prompt_s_embedding_does_not_depend_on_its_steps(pooling: Pooling, budget: int) -> None:
    """The second time, its beginning is in the prefix cache."""
    engine = toy_engine(pooling=pooling.value, max_num_batched_tokens=budget, max_num_seqs=4)
    texts = ["the same beginning, one end", "the same beginning, another end", "x"]
    with serve_engine(engine) as served, served.client() as http:
        for _ in range(2):
            found = vectors(embed(http, input=texts))
            for text, vector in zip(texts, found, strict=True):
                assert vector == pytest.approx(simulated(text, pooling))
        served.wait_idle()


def test_last_pooling_uses_the_prefix_cache_and_mean_pooling_does_not() -> None:
    engine = toy_engine()

    async def cached(pooling: Pooling) -> int:
        params = SamplingParams(max_tokens=0, pooling=pooling)
        text = f"{pooling}: a prompt of several blocks"
        for _ in range(2):
            outputs = [output async for output in engine.generate(text, params)]
            assert outputs[-1].embedding == pytest.approx(simulated(text, pooling))
        return outputs[-1].num_cached_tokens

    with serve_engine(engine) as served:
        assert served.run(cached(Pooling.LAST)) > 0
        assert served.run(cached(Pooling.MEAN)) == 0


def test_embeddings_and_answers_share_steps(http: httpx.Client, toy: Served) -> None:
    async def both() -> tuple[Any, Any]:
        async def last(prompt: str, params: SamplingParams) -> Any:
            return [output async for output in toy.engine.generate(prompt, params)][-1]

        return await asyncio.gather(
            last("abc", SamplingParams(max_tokens=0, pooling=Pooling.MEAN)),
            last("abc", SamplingParams(max_tokens=5, temperature=0)),
        )

    embedded, answered = toy.run(both())
    assert embedded.embedding == pytest.approx(simulated("abc", Pooling.MEAN))
    assert embedded.outputs[0].token_ids == () and answered.embedding is None
    assert len(answered.outputs[0].token_ids) == 5


def test_a_call_of_many_inputs_is_answered_in_order(http: httpx.Client) -> None:
    texts = [chr(97 + i % 26) * (i % 9 + 1) for i in range(200)]
    assert vectors(embed(http, input=texts)) == [simulated(text, Pooling.LAST) for text in texts]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": ""}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
def test_wrong_fields_are_named(http: httpx.Client, fields: Any, param: str) -> None:
    check_error(embed(http, **fields), 400, param)


def test_pooling_needs_a_request_that_generates_nothing() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens 0"):
        SamplingParams(pooling=Pooling.LAST)
