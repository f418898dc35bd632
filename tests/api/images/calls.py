"""Calls with images, in the three APIs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import httpx
from PIL import Image

from tests.oracle.tiny_smolvlm import picture, png

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
NUM_TOKENS = 8
ONE, TWO = picture(1, 60, 50), picture(2, 200, 40)


def data_url(image: Image.Image) -> str:
    return f"data:image/png;base64,{in_base64(png(image))}"


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image_part(image: Image.Image, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image), "detail": "auto"}, **fields}


def chat(http: httpx.Client, *parts: dict[str, Any], **fields: Any) -> httpx.Response:
    """A chat with one message of these parts."""
    message = {"role": "user", "content": list(parts)}
    given = {"messages": [message], "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    return http.post(CHAT, json=given | {"return_token_ids": True} | fields)


def token_ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def shown(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts as the chat template sees them, for transformers."""
    return [part if part["type"] == "text" else {"type": "image"} for part in parts]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return list(map(json.loads, lines))
