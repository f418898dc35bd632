"""The parts of OpenAI's answers that a chat reads; servers may send more."""

from __future__ import annotations

from typing import Any

import msgspec


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
