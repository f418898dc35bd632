"""The model that answers: conversations to requests, and events to pieces of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ....core.errors import TokenmillError
from .transport import Transport

Message = Mapping[str, str]
"""A message of OpenAI's API, with "role" and "content"."""

RECOMMENDED: Mapping[str, Mapping[str, float]] = {
    "SmolLM2-135M-Instruct": {"temperature": 0.2, "top_p": 0.9}
}
"""Sampling that a model's card recommends, where the model's own files name none. These models are
small: every third answer to an open question repeats itself until a limit ends it."""
MAX_SMALL_ANSWER = 1024
"""This limit, in tokens; an eighth of the context if that is less."""
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|context of \d+ tokens|(prompt|input) is too long"
    r"|maximum model length",
    re.I,
)
"""How servers say that a conversation exceeds the context: vLLM, llama.cpp, OpenAI, tokenmill."""


class ContextFullError(TokenmillError):
    """The conversation is too long for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Numbers of tokens of one answer."""

    num_prompt_tokens: int
    num_answer_tokens: int
    num_cached_tokens: int = 0
    """Tokens of the prompt that were not computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an answer, or facts about all of it."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


Pieces = Generator[Piece, None, None]
"""An answer. To close it is to stop the model."""


class Partner:
    """A model behind an OpenAI-compatible API."""

    def __init__(self, transport: Transport, model: str | None = None) -> None:
        """`model`: one of the server's models; None: its first.

        Raises TokenmillError if nobody answers.
        """
        self._transport = transport
        card = self._find_model(model)
        self.model: str = card["id"]
        length = card.get("max_model_len") or (card.get("meta") or {}).get("n_ctx")
        self.context_length: int | None = length if isinstance(length, int) else None
        """In tokens; None if the server does not say it."""
        self.sampling: dict[str, Any] = dict(RECOMMENDED.get(self.model, {}))
        """Sampling parameters that the chat should begin with."""
        if self.sampling and self.context_length:
            self.sampling["max_tokens"] = min(MAX_SMALL_ANSWER, self.context_length // 8)

    @property
    def place(self) -> str:
        """Where the model runs."""
        return self._transport.place

    def answer(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Pieces:
        """The answer to a conversation.

        Raises ContextFullError before the first piece, and TokenmillError.
        """
        fields = {"model": self.model, "messages": messages, **options}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        reply = self._transport.send("/chat/completions", json.dumps(fields | stream).encode())
        with closing(reply.lines) as lines:
            if reply.status != 200:
                raise _refusal(reply.status, b"\n".join(lines))
            yield from self._pieces(lines)

    def _pieces(self, lines: Iterator[bytes]) -> Pieces:
        is_whole = False
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return
            if data:
                piece = _piece(self._parse(data))
                is_whole = is_whole or piece.finish_reason is not None
                yield piece
        if not is_whole:  # http.client may take a lost connection for the end
            raise TokenmillError(f"the connection to {self.place} is lost")

    def _find_model(self, name: str | None) -> dict[str, Any]:
        reply = self._transport.send("/models")
        body = b"\n".join(reply.lines)
        if reply.status != 200 and not (name and reply.status == 404):
            raise _refusal(reply.status, body)
        found = self._parse(body).get("data") if reply.status == 200 else None
        cards = [card for card in found or [] if isinstance(card, dict) and "id" in card]
        if name is None and not cards:
            raise TokenmillError(f"{self.place} lists no model; name one: `tokenmill chat MODEL`")
        if name is None:
            return cards[0]
        return next((card for card in cards if card["id"] == name), {"id": name})

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise self._not_the_api() from error
        if not isinstance(found, dict):
            raise self._not_the_api()
        return found

    def _not_the_api(self) -> TokenmillError:
        return TokenmillError(f"{self.place} does not answer as OpenAI's API does: check --url")


def _piece(event: dict[str, Any]) -> Piece:
    """A chunk of a stream. Raises TokenmillError for an error event."""
    if "error" in event:
        raise TokenmillError(_message(event) or "the server failed to answer")
    choice: dict[str, Any] = next(iter(event.get("choices") or ()), {})
    delta = choice.get("delta") or {}
    return Piece(
        text=delta.get("content") or "",
        reasoning=delta.get("reasoning") or delta.get("reasoning_content") or "",
        finish_reason=choice.get("finish_reason"),
        usage=_usage(event.get("usage")),
    )


def _usage(found: dict[str, Any] | None) -> Usage | None:
    if not found:
        return None
    return Usage(
        num_prompt_tokens=found.get("prompt_tokens") or 0,
        num_answer_tokens=found.get("completion_tokens") or 0,
        num_cached_tokens=(found.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


def _refusal(status: int, body: bytes) -> TokenmillError:
    try:
        message = _message(json.loads(body))
    except ValueError:
        message = ""
    is_long = status in (400, 413, 422) and _TOO_LONG.search(body.decode(errors="replace"))
    kind = ContextFullError if is_long else TokenmillError
    return kind(message or f"the server answered with HTTP status {status}")


def _message(document: Any) -> str:
    """The message of an error in the shape of OpenAI's API, or in that of FastAPI."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or ""
    return " ".join(str(error).split())
