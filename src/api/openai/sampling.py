"""Builds SamplingParams from a request's fields."""

from __future__ import annotations

from typing import Any

from ...core.contract.client import EngineClient
from ...core.sampling_params import COMPLETIONS, OutputKind, SamplingParams, sampled_in
from ...core.shell.checking import sampling_defaults
from .reading.bodies import ChatBody, CompletionBody, SamplingFields
from .reading.grammar_fields import read_grammar

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions. The default for chat is all the room in the context."""
NO_LIMIT = 2**31


def completion_params(body: CompletionBody, engine: EngineClient) -> SamplingParams:
    """Sampling parameters of /v1/completions.

    Raises InvalidRequestError or APIError with the field's name.
    """
    defaults = sampling_defaults(engine.config, engine.info)
    default = defaults.get("max_tokens", COMPLETION_MAX_TOKENS)
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = max(int(default), body.min_tokens or 0)
    return _common(
        body,
        engine,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=_scored_prompt(body),
    )


def _scored_prompt(body: CompletionBody) -> int | None:
    """The number of log-probabilities per prompt token: an echoed prompt has those of the answer.

    None: the prompt is not scored.
    """
    echoed = body.logprobs if body.echo else None
    wishes = [count for count in (echoed, body.prompt_logprobs) if count is not None]
    return max(wishes, default=None)


def chat_params(body: ChatBody, engine: EngineClient) -> SamplingParams:
    """Sampling parameters of /v1/chat/completions.

    Raises InvalidRequestError or APIError with the field's name.
    """
    max_tokens = body.max_completion_tokens
    return _common(
        body,
        engine,
        max_tokens=body.max_tokens if max_tokens is None else max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )


def with_default_length(
    params: SamplingParams, engine: EngineClient, num_prompt_tokens: int
) -> SamplingParams:
    """The parameters of a chat. Without `max_tokens` its answer has the default length, as far as
    the context has room; if there is no default, it has all the room."""
    default = sampling_defaults(engine.config, engine.info).get("max_tokens")
    room = engine.max_model_len - num_prompt_tokens
    if params.max_tokens is not None or default is None or room < 1:
        return params
    return params.with_changes(max_tokens=min(max(default, params.min_tokens), room))


def params_with_all_room(
    engine: EngineClient, *, max_tokens: int | None, **given: Any
) -> SamplingParams:
    """The model's default parameters, overridden by `given`.

    `max_tokens` None allows as many tokens as fit into the context, instead of the engine's small
    default.
    """
    if max_tokens is not None:
        return engine.default_sampling_params(max_tokens=max_tokens, **given)
    params = engine.default_sampling_params(max_tokens=NO_LIMIT, **given)
    return params.with_changes(max_tokens=None)


def _common(
    body: SamplingFields, engine: EngineClient, *, max_tokens: int | None, **given: Any
) -> SamplingParams:
    sampled = {name: getattr(body, name) for name in sampled_in(COMPLETIONS)}
    return params_with_all_room(
        engine,
        **sampled
        | {"extra_args": body.vllm_xargs or None, "grammar": read_grammar(body)}
        | {"output_kind": OutputKind.DELTA, "max_tokens": max_tokens, **given},
    )
