"""Images in a chat: files become data URLs, and parts of a message."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....core.errors import TokenmillError
from ....core.requests.given_images import MAX_FILE_BYTES

Message = Mapping[str, Any]
"""A message of a conversation: "role", "content" as text and, if it has images, "images": a list of
data URLs. In OpenAI's API the images are parts before the text."""


def read_image(file: Path) -> str:
    """The image in a file as a data URL. Raises TokenmillError if it cannot be read."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenmillError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise TokenmillError(f"{file} is larger than {MAX_FILE_BYTES} bytes")
    kind = mimetypes.guess_type(file.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def as_parts(message: Message) -> Message:
    """The message in the shape of OpenAI's API."""
    images = message.get("images")
    if not images:
        return message
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    content = [*parts, {"type": "text", "text": message["content"]}]
    return {"role": message["role"], "content": content}


def without_parts(message: Any) -> Any:
    """The message of a file, with its parts as text and images; as it is if it has others."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return message
    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    urls = [
        part["image_url"].get("url") for part in content if isinstance(part.get("image_url"), dict)
    ]
    if len(texts) + len(urls) < len(content) or not all(isinstance(url, str) for url in urls):
        return message
    return {"role": message.get("role"), "content": "\n".join(texts), "images": urls}
