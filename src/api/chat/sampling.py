"""Sampling parameters of chats: the room in the context, and the limit of the reasoning."""

from __future__ import annotations

from typing import Any

from ...core.contract.client import EngineClient
from ...core.contract.providers.logits_processor import THINKING_BUDGET
from ...core.errors import named
from ...core.interfaces import Tokenizer
from ...core.requests.sampling_params import SamplingParams
from ...core.shell.checking import sampling_defaults
from ..http.errors import APIError
from ..parsing.chosen_parsers import AnswerParsers

NO_LIMIT = 2**31
_PARAM = "thinking_token_budget"
_FIELD = named(_PARAM)


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

    `max_tokens` None allows all tokens that fit into the context, instead of the engine's small
    default.
    """
    if max_tokens is not None:
        return engine.default_sampling_params(max_tokens=max_tokens, **given)
    params = engine.default_sampling_params(max_tokens=NO_LIMIT, **given)
    return params.with_changes(max_tokens=None)


def with_thinking_budget(
    params: SamplingParams,
    budget: int | None,
    parsers: AnswerParsers,
    prompt_end: str,
    tokenizer: Tokenizer,
) -> SamplingParams:
    """The parameters with a limit of the reasoning. `prompt_end` may have opened it.

    Raises APIError (400) if the model's reasoning has no end that the server knows.
    """
    if budget is None or budget < 0:
        return params
    marks = reasoning_marks(parsers)
    if marks is None:
        raise APIError(
            400,
            f"{_FIELD} needs a reasoning parser with marks, and this server has none; leave it "
            "out, or start the server with --reasoning-parser NAME",
            param=_PARAM,
            code="unsupported",
        )
    start, end = (tokenizer.encode(mark, add_special_tokens=False) for mark in marks)
    if params.allowed_token_ids is not None and not set(end) <= set(params.allowed_token_ids):
        raise APIError(
            400, f"{_FIELD} needs {marks[1]!r} in allowed_token_ids", param="allowed_token_ids"
        )
    is_open = prompt_end.rstrip().endswith(marks[0])
    limit = {"max_tokens": budget, "start": start, "end": end, "is_open": is_open}
    return params.with_changes(extra_args={**(params.extra_args or {}), THINKING_BUDGET: limit})


def reasoning_marks(parsers: AnswerParsers) -> tuple[str, str] | None:
    """The texts around the reasoning of the served model; None: it has none that is known."""
    return parsers.reasoning.marks if parsers.reasoning is not None else None
