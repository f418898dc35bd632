"""The model that answers: conversations to requests, and events to pieces of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from .....core.errors import TokenmillError
from .transport import Transport

T = TypeVar("T")

Message = Mapping[str, Any]
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
"""Errors of vLLM, llama.cpp, OpenAI and tokenmill for a conversation that exceeds the context."""


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
        found = self._find_model(model)
        self.model = found.id
        self.context_length = found.context_length
        self.sampling: dict[str, Any] = dict(RECOMMENDED.get(self.model, {}))
        """Sampling parameters that the chat should begin with."""
        if self.sampling and self.context_length:
            self.sampling["max_tokens"] = min(MAX_SMALL_ANSWER, self.context_length // 8)

    @property
    def place(self) -> str:
        """The place where the model runs."""
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
                piece = _piece(self._decode(data, Chunk))
                is_whole = is_whole or piece.finish_reason is not None
                yield piece
        if not is_whole:  # http.client may take a lost connection for the end
            raise TokenmillError(f"the connection to {self.place} is lost")

    def _find_model(self, name: str | None) -> Model:
        reply = self._transport.send("/models")
        body = b"\n".join(reply.lines)
        if reply.status == 404 and name:  # some servers have no list
            return Model(name)
        if reply.status != 200:
            raise _refusal(reply.status, body)
        models = self._decode(body, Models).data or []
        if name is not None:
            return next((model for model in models if model.id == name), Model(name))
        if not models:
            raise TokenmillError(f"{self.place} lists no model; name one: `tokenmill chat MODEL`")
        return models[0]

    def _decode(self, text: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TokenmillError(
                f"{self.place} does not answer as OpenAI's API does ({error}): check --url"
            ) from error


def _piece(chunk: Chunk) -> Piece:
    """A chunk of a stream. Raises TokenmillError for an error event."""
    if chunk.error is not None:
        raise TokenmillError(_message(chunk.error) or "the server failed to answer")
    choice = chunk.choices[0] if chunk.choices else Choice()
    delta = choice.delta or Delta()
    return Piece(
        text=delta.content or "",
        reasoning=delta.reasoning or delta.reasoning_content or "",
        finish_reason=choice.finish_reason,
        usage=_usage(chunk.usage) if chunk.usage else None,
    )


def _usage(found: TokenCounts) -> Usage:
    details = found.prompt_tokens_details
    return Usage(
        num_prompt_tokens=found.prompt_tokens,
        num_answer_tokens=found.completion_tokens,
        num_cached_tokens=(details and details.cached_tokens) or 0,
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


# The parts of OpenAI's answers that a chat reads; servers may send more.
class Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same as `reasoning`; servers have one name or the other."""


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class TokenCounts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct):
    """An event of a stream."""

    choices: list[Choice] | None = None
    usage: TokenCounts | None = None
    error: Any = None


class Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    """The length of the context: vLLM and tokenmill."""
    meta: Any = None
    """An object with "n_ctx": llama.cpp."""

    @property
    def context_length(self) -> int | None:
        """In tokens; None if the server does not say it."""
        found = self.meta.get("n_ctx") if isinstance(self.meta, dict) else None
        return self.max_model_len or (found if isinstance(found, int) else None)


class Models(msgspec.Struct):
    data: list[Model] | None = None
