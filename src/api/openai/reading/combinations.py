"""Checks fields of a body that depend on each other."""

from __future__ import annotations

from ...http.errors import APIError
from ...serving.reading.unsupported import unsupported
from .bodies import ChatBody, SamplingFields


def check_combinations(body: SamplingFields) -> None:
    """Raise APIError (400) for fields that contradict each other, or that cannot be combined."""
    if body.best_of not in (None, 1) and body.best_of != body.n:
        raise unsupported("best_of", "use n")
    options = body.stream_options
    if options is not None and not body.stream:
        raise APIError(400, "stream_options needs stream: true", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise unsupported("stream_options.include_obfuscation", "leave it out")
    if body.prompt_logprobs is not None and body.stream:
        raise unsupported("prompt_logprobs", "leave out stream: true, or use echo with logprobs")
    if isinstance(body, ChatBody):
        _check_chat(body)


def _check_chat(body: ChatBody) -> None:
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise APIError(
            400,
            "max_tokens and max_completion_tokens mean the same and differ; give one of them",
            param="max_completion_tokens",
        )
