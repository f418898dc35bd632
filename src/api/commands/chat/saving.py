"""Conversations as JSON files: the beginning of a request's body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....core.errors import TokenmillError
from .images import Message, as_parts, without_parts

ROLES = ("system", "user", "assistant")


def write_messages(file: Path, messages: Sequence[Message], model: str) -> None:
    """Write a conversation. A file that is something else is kept. Raises TokenmillError."""
    if file.exists():
        read_messages(file)
    text = json.dumps(
        {"model": model, "messages": list(map(as_parts, messages))}, indent=1, ensure_ascii=False
    )
    try:
        file.write_text(f"{text}\n", encoding="utf-8", errors="replace")
    except OSError as error:
        raise TokenmillError(f"{file} cannot be written: {error.strerror}") from error


def read_messages(file: Path) -> list[Message]:
    """The messages of a JSON file: a list of them, or an object that has it as "messages".

    Raises TokenmillError.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TokenmillError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TokenmillError(f"{file} is not a conversation: it is not JSON") from error
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list):
        raise TokenmillError(f"{file} is not a conversation: it has no list of messages")
    return [_checked(without_parts(one), file, place) for place, one in enumerate(messages)]


def _checked(message: Any, file: Path, place: int) -> Message:
    fields = message if isinstance(message, dict) else {}
    role, content = fields.get("role"), fields.get("content")
    if role not in ROLES or (role == "system" and place) or not isinstance(content, str):
        raise TokenmillError(
            f"message {place + 1} of {file} cannot be used: it needs a role (user, assistant, or "
            "system at the beginning) and a content of text, or of text and images"
        )
    images = fields.get("images")
    return {"role": role, "content": content, **({"images": images} if images else {})}
