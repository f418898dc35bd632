"""Wire formats: how a request is written, and what an event of its answer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The content of one event of an answer."""

    text: str = ""
    content: str | None = None
    """The part of `text` that is no reasoning; None: all of it."""
    num_output_tokens: int | None = None
    """The tokens of the whole answer. None: the event does not state them."""
    num_prompt_tokens: int | None = None
    error: str | None = None


class Endpoint(Protocol):
    """One API of a server."""

    path: str
    streams: bool

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The fields that this API needs for a prompt."""
        ...

    def read(self, event: Mapping[str, Any]) -> News:
        """The content of an event; an answer that is not streamed is one event."""
        ...


class Completions:
    """OpenAI's /v1/completions."""

    path = "/v1/completions"
    streams = True

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return {"prompt": prompt.text, "max_tokens": prompt.max_tokens} | _STREAMED

    def read(self, event: Mapping[str, Any]) -> News:
        return _news(event, "".join(c.get("text") or "" for c in event.get("choices", ())))


class Chat:
    """OpenAI's /v1/chat/completions."""

    path = "/v1/chat/completions"
    streams = True

    def body(self, prompt: Prompt) -> dict[str, Any]:
        messages = [*prompt.messages, {"role": "user", "content": prompt.text}]
        return {"messages": messages, "max_completion_tokens": prompt.max_tokens} | _STREAMED

    def read(self, event: Mapping[str, Any]) -> News:
        deltas = [choice.get("delta", {}) for choice in event.get("choices", ())]
        content = "".join(d.get("content") or "" for d in deltas)
        thoughts = (d.get("reasoning") or d.get("reasoning_content") or "" for d in deltas)
        return _news(event, "".join(thoughts) + content, content)


class Embeddings:
    """OpenAI's /v1/embeddings."""

    path = "/v1/embeddings"
    streams = False

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return {"input": prompt.text}

    def read(self, event: Mapping[str, Any]) -> News:
        return _news(event, "")


ENDPOINTS: Mapping[str, type[Endpoint]] = {
    "openai": Completions,
    "vllm": Completions,
    "openai-chat": Chat,
    "openai-embeddings": Embeddings,
}
"""By vLLM's names of --backend."""
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def _news(event: Mapping[str, Any], text: str, content: str | None = None) -> News:
    if (error := event.get("error")) is not None:
        message = error.get("message") if isinstance(error, Mapping) else error
        return News(error=str(message))
    usage = event.get("usage") or {}
    return News(
        text=text,
        content=content,
        num_output_tokens=usage.get("completion_tokens"),
        num_prompt_tokens=usage.get("prompt_tokens"),
    )


class EventReader:
    """Divides a stream of server-sent events into its JSON objects."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, part: bytes) -> list[Mapping[str, Any]]:
        """Return the events that are complete with this part. Raises ValueError for wrong JSON."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        events = []
        for line in lines:
            data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data and data != b"[DONE]":
                events.append(json.loads(data))
        return events
