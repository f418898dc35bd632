"""The official client, strict about what it is answered, against real weights on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from .serving import Served

PROMPT = "The capital of France is"
MESSAGES: Any = [{"role": "user", "content": "Name three colors."}]


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[openai.OpenAI]:
    with connect(real, strict=True) as client:
        yield client


@pytest.fixture(scope="module")
def lenient(real: Served) -> Iterator[openai.OpenAI]:
    with connect(real, strict=False) as client:
        yield client


def connect(real: Served, *, strict: bool) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{real.url}/v1", api_key="x", max_retries=0, _strict_response_validation=strict
    )


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def streamed_chat(client: openai.OpenAI, **options: Any) -> list[ChatCompletionChunk]:
    return list(client.chat.completions.create(stream=True, **options))


def legacy_stream(lenient: openai.OpenAI, **options: Any) -> list[Completion]:
    """OpenAI's own server sends `finish_reason: null` in these chunks, which its client's types do
    not have; so strictness is off here, and each chunk is checked without that field."""
    chunks = list(lenient.completions.create(stream=True, **options))
    for chunk in chunks:
        for choice in chunk.choices:
            given = choice.model_dump()
            type(choice).model_validate(
                given | {"finish_reason": given["finish_reason"] or "stop"}, strict=True
            )
    return chunks


def test_the_model_is_listed_and_found(client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_greedy_completion_is_right_and_counted(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=5, temperature=0)
    assert "Paris" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 5)
    assert answer.usage.total_tokens == 10


def test_a_streamed_completion_joins_to_the_whole_one(
    client: openai.OpenAI, lenient: openai.OpenAI, model: str
) -> None:
    options: Any = {"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**options)
    chunks = legacy_stream(lenient, stream_options={"include_usage": True}, **options)
    assert "".join(c.choices[0].text for c in chunks[:-1]) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "length"
    ]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({c.id for c in chunks}) == 1
    assert len(chunks) > 10


def test_a_streamed_chat_joins_to_the_whole_one(client: openai.OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": MESSAGES, "max_tokens": 9, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = streamed_chat(client, stream_options={"include_usage": True}, **options)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == whole.choices[0].message.role == "assistant"
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 9
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert [c.choices[0].finish_reason for c in chunks[-2:-1]] == ["length"]


def test_without_include_usage_no_chunk_has_it(client: openai.OpenAI, model: str) -> None:
    chunks = streamed_chat(client, model=model, messages=MESSAGES, max_tokens=2)
    assert all(c.usage is None and c.choices for c in chunks)


def test_n_choices_come_whole_and_streamed(
    client: openai.OpenAI, lenient: openai.OpenAI, model: str
) -> None:
    options: Any = {"model": model, "max_tokens": 6, "n": 3, "seed": 5}
    whole = client.completions.create(prompt=PROMPT, **options)
    assert [c.index for c in whole.choices] == [0, 1, 2]
    assert len({c.text for c in whole.choices}) > 1
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 18)
    texts = ["", "", ""]
    for chunk in legacy_stream(lenient, prompt=PROMPT, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [c.text for c in whole.choices]
    chat = client.chat.completions.create(messages=MESSAGES, **options)
    contents = ["", "", ""]
    for event in streamed_chat(client, messages=MESSAGES, **options):
        for part in event.choices:
            contents[part.index] += part.delta.content or ""
    assert contents == [c.message.content for c in chat.choices]


def test_prompts_may_be_lists_of_texts_or_token_ids(
    client: openai.OpenAI, lenient: openai.OpenAI, model: str, real: Served
) -> None:
    texts = [PROMPT, "One two three"]
    ids = [real.engine.tokenizer.encode(text) for text in texts]
    options: Any = {"model": model, "max_tokens": 4, "temperature": 0}
    by_text = client.completions.create(prompt=texts, **options)
    by_ids = client.completions.create(prompt=ids, **options)
    alone = client.completions.create(prompt=ids[1], **options)
    assert [c.index for c in by_text.choices] == [0, 1]
    assert [c.text for c in by_text.choices] == [c.text for c in by_ids.choices]
    assert alone.choices[0].text == by_ids.choices[1].text
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == sum(map(len, ids))
    joined = {0: "", 1: ""}
    for chunk in legacy_stream(lenient, prompt=texts, **options):
        for choice in chunk.choices:
            joined[choice.index] += choice.text
    assert list(joined.values()) == [c.text for c in by_text.choices]


def test_logprobs_of_a_completion(
    client: openai.OpenAI, lenient: openai.OpenAI, model: str
) -> None:
    options: Any = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    answer = client.completions.create(logprobs=3, **options)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens is not None
    assert found.token_logprobs and found.top_logprobs and found.text_offset is not None
    assert "".join(found.tokens) == answer.choices[0].text
    for token, chosen, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == chosen == max(top.values()) <= 0
        assert len(top) == 3
    assert found.text_offset == [sum(map(len, found.tokens[:i])) for i in range(len(found.tokens))]
    chunks = legacy_stream(lenient, logprobs=3, **options)
    lists = [c.choices[0].logprobs for c in chunks]
    assert [t for part in lists if part for t in part.tokens or []] == found.tokens
    assert [t for part in lists if part for t in part.text_offset or []] == found.text_offset


def test_logprobs_of_a_chat(client: openai.OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    answer = client.chat.completions.create(logprobs=True, top_logprobs=2, **options)
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None
    assert len(found.content) == 4
    assert all(len(token.top_logprobs) == 2 for token in found.content)
    raw = b"".join(bytes(token.bytes or []) for token in found.content)
    assert raw.decode() == answer.choices[0].message.content
    chunks = streamed_chat(client, logprobs=True, top_logprobs=2, **options)
    streamed = [
        token.token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == [token.token for token in found.content]
    plain = client.chat.completions.create(logprobs=True, **options).choices[0].logprobs
    assert plain is not None and plain.content is not None and not plain.content[0].top_logprobs


def test_a_stop_string_ends_the_text_before_it(
    client: openai.OpenAI, lenient: openai.OpenAI, model: str
) -> None:
    options: Any = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
    text = client.completions.create(**options).choices[0].text
    stop = text[6:9]
    cut = client.completions.create(stop=[stop], **options).choices[0]
    assert cut.text == text[: text.index(stop)]
    assert cut.finish_reason == "stop"
    chunks = legacy_stream(lenient, stop=stop, **options)
    assert "".join(c.choices[0].text for c in chunks) == cut.text


def test_a_seed_repeats_and_another_differs(client: openai.OpenAI, model: str) -> None:
    def text(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=12, seed=seed
        )
        return answer.choices[0].message.content

    assert text(1) == text(1) != text(2)


def test_errors_become_the_client_s_exceptions(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=model, prompt=PROMPT, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=model, prompt=PROMPT, max_tokens=5000)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt=PROMPT, extra_body={"use_beam_search": True})
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert missing.value.code == "model_not_found"


def test_the_asynchronous_client_streams_many_at_once(real: Served, model: str) -> None:
    async def ask(client: openai.AsyncOpenAI, count: int) -> str:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Count to {count}."}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{real.url}/v1",
            api_key="x",
            _strict_response_validation=True,
        ) as client:
            return await asyncio.gather(*(ask(client, i) for i in range(2, 10)))

    texts = asyncio.run(main())
    assert all(texts)
    real.wait_idle()
