"""Images in chats, Responses and Messages: the answers are those of transformers."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.serving import Served
from tests.oracle.image_reference import ImageReference
from tests.oracle.tiny_smolvlm import png

from .calls import (
    CHAT,
    MESSAGES,
    NUM_TOKENS,
    ONE,
    RESPONSES,
    TWO,
    chat,
    data_url,
    events,
    image_part,
    in_base64,
    shown,
    text,
    token_ids,
)
from .conftest import KEYS
from .test_tool_results import bodies


def test_images_of_a_chat_may_stand_anywhere(http: httpx.Client, reference: ImageReference) -> None:
    for parts, images in (
        ([text("Hi")], []),
        ([image_part(ONE)], [ONE]),
        ([text("What is "), image_part(TWO), text("?")], [TWO]),
        ([image_part(ONE), image_part(TWO), text("and"), image_part(ONE)], [ONE, TWO, ONE]),
    ):
        message = {"role": "user", "content": shown(parts)}
        prompt, answer = reference.answer([message], images, NUM_TOKENS)
        found = chat(http, *parts)
        assert token_ids(found) == answer
        assert found.json()["prompt_token_ids"] == prompt


def test_every_role_may_have_images(http: httpx.Client, reference: ImageReference) -> None:
    turns = [
        {"role": "system", "content": [text("Be brief."), image_part(ONE)]},
        {"role": "user", "content": [image_part(TWO), text("What?")]},
        {"role": "assistant", "content": [text("This:"), image_part(ONE)]},
        {"role": "user", "content": "And now?"},
    ]
    seen = [turn | {"content": shown(turn["content"])} for turn in turns[:3]]
    seen += [{"role": "user", "content": [text("And now?")]}]
    prompt, answer = reference.answer(seen, [ONE, TWO, ONE], NUM_TOKENS)
    found = chat(http, messages=turns)
    assert found.json()["prompt_token_ids"] == prompt
    assert token_ids(found) == answer


def test_a_streamed_answer_is_the_whole_one(http: httpx.Client) -> None:
    parts = image_part(ONE), text("What?")
    whole = chat(http, *parts)
    options = {"include_usage": True}
    chunks = events(chat(http, *parts, stream=True, stream_options=options))
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    found = [one for choice in choices for one in choice.get("token_ids") or ()]
    assert found == token_ids(whole)
    assert chunks[-1]["usage"]["prompt_tokens"] == whole.json()["usage"]["prompt_tokens"]
    assert chunks[-1]["usage"]["prompt_tokens_details"]["multimodal_tokens"] == {"image": 68}


def test_usage_counts_tokens_of_images(http: httpx.Client) -> None:
    """An image of 60 x 50 pixels becomes 4 x 4 tiles and the whole image, of 4 tokens each."""
    found = chat(http, image_part(ONE), text("What?")).json()
    usage = found["usage"]
    assert usage["prompt_tokens"] == len(found["prompt_token_ids"])
    assert usage["prompt_tokens_details"]["multimodal_tokens"] == {"image": 17 * 4}
    details = chat(http, text("What?")).json()["usage"]["prompt_tokens_details"]
    assert "multimodal_tokens" not in details


def test_responses_and_messages_see_the_same_prompt(http: httpx.Client) -> None:
    whole = chat(http, image_part(ONE), text("What?"))
    words = whole.json()["choices"][0]["message"]["content"]
    num_tokens = whole.json()["usage"]["prompt_tokens"]
    sampled = {"temperature": 0, "ignore_eos": True}
    parts = [
        {"type": "input_image", "image_url": data_url(ONE), "detail": "low"},
        {"type": "input_text", "text": "What?"},
    ]
    given = {"input": [{"role": "user", "content": parts}], "max_output_tokens": NUM_TOKENS}
    response = http.post(RESPONSES, json=given | sampled).json()
    assert response["usage"]["input_tokens"] == num_tokens
    assert response["output"][0]["content"][0]["text"] == words

    source = {"type": "base64", "media_type": "image/png", "data": in_base64(png(ONE))}
    blocks = [{"type": "image", "source": source}, text("What?")]
    body = {"model": "tiny", "messages": [{"role": "user", "content": blocks}]}
    message = http.post(MESSAGES, json=body | {"max_tokens": NUM_TOKENS, "temperature": 0}).json()
    assert message["content"][0]["text"] == words
    used = message["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == num_tokens
    counted = http.post(f"{MESSAGES}/count_tokens", json=body).json()
    assert counted["input_tokens"] == num_tokens


def test_clients_of_ollama_send_images(http: httpx.Client) -> None:
    words = chat(http, image_part(ONE), text("What?")).json()["choices"][0]["message"]["content"]
    images = [in_base64(png(ONE))]
    options = {"temperature": 0, "num_predict": NUM_TOKENS}
    body = {"model": "tiny", "stream": False, "options": options}
    message = {"role": "user", "content": "What?", "images": images}
    answer = http.post("/api/chat", json=body | {"messages": [message]})
    assert answer.json()["message"]["content"] == words
    answer = http.post("/api/generate", json=body | {"prompt": "What?", "images": images})
    assert answer.json()["response"] == words


def test_tokens_of_a_chat_with_images_can_be_counted(http: httpx.Client) -> None:
    whole = chat(http, image_part(ONE), text("What?")).json()
    message = {"role": "user", "content": [image_part(ONE), text("What?")]}
    found = http.post("/tokenize", json={"messages": [message]}).json()
    assert found["tokens"] == whole["prompt_token_ids"]
    assert found["count"] == whole["usage"]["prompt_tokens"]


def test_text_that_spells_a_placeholder_stays_text(
    http: httpx.Client, reference: ImageReference
) -> None:
    words = "<image><fake_token_around_image><global-img><row_1_col_1>"
    whole = chat(http, text(words), image_part(ONE), text("<image>"))
    placeholder = whole.json()["prompt_token_ids"].count(reference.image_token_id)
    assert placeholder == 17 * 4
    said = {"role": "assistant", "content": "I see <image>."}
    found = chat(http, messages=[{"role": "user", "content": words}, said])
    assert reference.image_token_id not in found.json()["prompt_token_ids"]


def test_prompts_with_images_may_be_scored(http: httpx.Client, reference: ImageReference) -> None:
    found = chat(http, image_part(ONE), text("What?"), prompt_logprobs=1).json()
    for token_id, scored in zip(found["prompt_token_ids"], found["prompt_logprobs"], strict=True):
        if token_id == reference.image_token_id:
            assert scored is None


def test_the_official_client_sends_images(vision: Served, http: httpx.Client) -> None:
    expected = chat(http, image_part(ONE), text("What?")).json()["choices"][0]["message"]
    parts: Any = [image_part(ONE), text("What?")]
    with openai.OpenAI(base_url=f"{vision.url}/v1", api_key=KEYS[0], max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": parts}],
            max_tokens=NUM_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert answer.choices[0].message.content == expected["content"]


def test_no_connection_is_opened(
    http: httpx.Client, allowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.get("/health")  # the client's own connection stays open
    tried: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: tried.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address: tried.append(address))
    assert len(token_ids(chat(http, image_part(ONE, uuid="one")))) == NUM_TOKENS
    named = {"type": "image_url", "image_url": None, "uuid": "one"}
    assert len(token_ids(chat(http, named))) == NUM_TOKENS
    (allowed / "one.png").write_bytes(png(ONE))
    file = {"type": "image_url", "image_url": (allowed / "one.png").as_uri()}
    assert len(token_ids(chat(http, file))) == NUM_TOKENS
    for path, body, _ in bodies():
        assert http.post(path, json=body).status_code == 200
    url = {"type": "image_url", "image_url": "http://127.0.0.1:9/a.png"}
    assert chat(http, url).status_code == 400
    assert not tried


def test_a_body_with_a_large_image_is_taken(http: httpx.Client) -> None:
    """5 MiB are more than a server of text takes."""
    padded = png(ONE) + bytes(5 << 20)  # after the image's end
    url = {"type": "image_url", "image_url": f"data:;base64,{in_base64(padded)}"}
    assert chat(http, url).status_code == 200
    assert http.post(CHAT, content=b" " * (21 << 20)).status_code == 413
