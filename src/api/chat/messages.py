"""The messages of a chat, from any API, in the form that chat templates read."""

from __future__ import annotations

import msgspec

from ..http.errors import APIError


class TextPart(msgspec.Struct, kw_only=True):
    type: str = "text"
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message. The chat template says which roles there are."""

    role: str
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, object]] | None = None
    tool_call_id: str | None = None


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A call in a message of the assistant; `arguments` is JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def needed(value: str | None, place: str) -> str:
    """A field that the type of its object needs. Raises APIError (400) if it is missing."""
    if value is None:
        raise missing(place)
    return value


def missing(place: str) -> APIError:
    """The error for a field that is missing."""
    return APIError(400, f"{place} is missing", param=place.partition("[")[0].partition(".")[0])


def text_only(place: str, kind: str) -> APIError:
    """The error for an image, an audio clip or a file."""
    return APIError(
        400,
        f"{place} of type {kind!r} is not supported: this server serves no model that reads "
        "anything but text",
        param=place.partition("[")[0],
        code="unsupported",
    )
