"""The messages of a chat, from any API, in the form that chat templates read."""

from __future__ import annotations

import msgspec

from ...core.requests.given_images import GivenImage
from ..http.errors import APIError


class ContentPart(msgspec.Struct, kw_only=True):
    """A text, or an image."""

    type: str = "text"
    text: str | None = None
    image: int | None = None
    """The number of the image in Conversation.images."""


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message. The chat template says which roles there are."""

    role: str
    content: str | list[ContentPart] | None = None
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


class Images:
    """Collects the images of a conversation while its messages are read."""

    def __init__(self) -> None:
        self.found: list[GivenImage] = []

    def add(self, source: str | None, place: str, uuid: str | None = None) -> ContentPart:
        """The part of a content that stands for an image: a URL, or what `uuid` names."""
        self.found.append(GivenImage(source=source, place=place, uuid=uuid))
        return ContentPart(type="image", image=len(self.found) - 1)


def not_read(place: str, kind: str) -> APIError:
    """The error for an audio clip, a video or a file."""
    return APIError(
        400,
        f"{place} of type {kind!r} is not supported: this server reads texts and images",
        param=place,
        code="unsupported",
    )
