"""Validates requests before they are queued, so that the engine loop gets only valid values."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import EngineConfig
from ..engine.blocks import hash_root
from ..engine.request import PromptGroup, Request
from ..errors import InvalidRequestError
from ..interfaces import ModelInfo, Tokenizer
from ..request_options import RequestOptions
from ..sampling_params import SamplingParams

LONG_TEXT = 4096
"""Characters. Texts of this length or more are tokenized on another thread, because that takes a
millisecond or more."""


def default_sampling_params(
    config: EngineConfig, info: ModelInfo, given: Mapping[str, object]
) -> SamplingParams:
    """The model's sampling defaults, overridden by the given values. None counts as not given."""
    defaults: Mapping[str, Any] = (
        info.sampling_defaults if config.generation_config == "auto" else {}
    )
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**{**defaults, **chosen})


async def checked_prompt(
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    tokenizer: Tokenizer,
    info: ModelInfo,
    config: EngineConfig,
    max_model_len: int,
) -> tuple[int, ...]:
    """The token ids of a prompt, after all checks that need no engine.

    A long text is tokenized on another thread. Raises InvalidRequestError.
    """
    check_sampling_params(params, info, config.max_logprobs)
    if not isinstance(prompt, str):  # before each id of a long list is checked
        room_for_output(len(prompt), params, max_model_len)
        return check_prompt_ids(prompt, info)
    check_prompt_text(prompt, tokenizer, max_model_len)
    if len(prompt) < LONG_TEXT:
        return check_prompt_ids(tokenizer.encode(prompt), info)
    return check_prompt_ids(await asyncio.to_thread(tokenizer.encode, prompt), info)


def check_prompt_text(prompt: str, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Refuse a text whose number of characters alone is too large, before it is tokenized.

    Raises InvalidRequestError.
    """
    most = max_model_len * tokenizer.max_chars_per_token
    if len(prompt) > most:
        raise InvalidRequestError(
            f"the prompt has {len(prompt)} characters; the context of {max_model_len} tokens "
            f"cannot hold more than {most}. Shorten the prompt.",
            param="prompt",
        )


def check_prompt_ids(prompt_token_ids: Sequence[int], info: ModelInfo) -> tuple[int, ...]:
    """Return the ids as a tuple.

    Raises InvalidRequestError for an empty prompt, and for ids outside the vocabulary.
    """
    ids = tuple(prompt_token_ids)
    if not ids:
        raise InvalidRequestError("the prompt is empty; give at least one token", param="prompt")
    if set(map(type, ids)) != {int}:
        raise InvalidRequestError("prompt token ids must be integers", param="prompt")
    for token_id in (min(ids), max(ids)):
        _check_id(token_id, info.vocab_size, "prompt")
    return ids


def check_sampling_params(params: SamplingParams, info: ModelInfo, max_logprobs: int) -> None:
    """Check the parameters that depend on the model or the engine.

    Raises InvalidRequestError for token ids outside the vocabulary, and for too many logprobs.
    """
    for token_id in params.stop_token_ids:
        _check_id(token_id, info.vocab_size, "stop_token_ids")
    for token_id in params.logit_bias or ():
        _check_id(token_id, info.vocab_size, "logit_bias")
    if params.logprobs is not None and params.logprobs > max_logprobs:
        raise InvalidRequestError(
            f"at most {max_logprobs} logprobs can be asked for (--max-logprobs), "
            f"got {params.logprobs}",
            param="logprobs",
        )


def room_for_output(num_prompt_tokens: int, params: SamplingParams, max_model_len: int) -> int:
    """Maximum number of tokens that the request may generate.

    Raises InvalidRequestError with both numbers if prompt and max_tokens exceed the context.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"this model's maximum context length is {max_model_len} tokens and the prompt has "
            f"{num_prompt_tokens}, which leaves no room for output. Shorten the prompt.",
            param="prompt",
        )
    if params.max_tokens is None:
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens} and the context of {max_model_len} tokens "
                f"leaves room for {room}",
                param="min_tokens",
            )
        return room
    if params.max_tokens > room:
        raise InvalidRequestError(
            f"this model's maximum context length is {max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens} and max_tokens asks for {params.max_tokens}, together "
            f"{num_prompt_tokens + params.max_tokens}. Shorten the prompt or lower max_tokens to "
            f"{room}.",
            param="max_tokens",
        )
    return params.max_tokens


def engine_ids(request_id: str, prompt_index: int, n: int) -> list[str]:
    """The engine's ids of the `n` choices of a prompt. A single choice of a single prompt has the
    id of the request."""
    if n == 1 and prompt_index == 0:
        return [request_id]
    return [f"{request_id}/{prompt_index}/{index}" for index in range(n)]


def make_requests(
    *,
    request_id: str,
    prompt_token_ids: tuple[int, ...],
    params: SamplingParams,
    options: RequestOptions,
    seed: int,
    arrival_time: float,
    max_model_len: int,
    info: ModelInfo,
    config: EngineConfig,
) -> list[Request]:
    """Make the engine's requests for one prompt: `n` choices that share the prompt's blocks.

    `request_id` is the id in the answer; the one in `options` may have been in use. Raises
    InvalidRequestError if the prompt is too long.
    """
    max_tokens = room_for_output(len(prompt_token_ids), params, max_model_len)
    group = PromptGroup() if params.n > 1 else None
    # Without prefix caching the choices of a prompt still share its blocks, but only they do. The
    # scope must be random: a request id would not do, because a client may use its id again.
    scope = "" if config.enable_prefix_caching else uuid.uuid4().hex
    return [
        Request(
            request_id=request_id,
            engine_id=engine_id,
            prompt_index=options.prompt_index,
            choice_index=index,
            prompt_token_ids=prompt_token_ids,
            sampling_params=params,
            max_tokens=max_tokens,
            arrival_time=arrival_time,
            seed=seed if index == 0 else random.Random(f"{seed}/{index}").getrandbits(63),
            eos_token_ids=info.eos_token_ids,
            priority=options.priority,
            user=options.user,
            api_key_id=options.api_key_id,
            key_limits=options.key_limits,
            client_request_id=options.client_request_id,
            metadata=options.metadata,
            trace_headers=options.trace_headers,
            deadline=None
            if config.request_timeout is None
            else arrival_time + config.request_timeout,
            cache_salt=options.cache_salt,
            cache_root=hash_root(info.name, options.cache_salt or "", scope),
            publishes=config.enable_prefix_caching or group is not None,
            group=group,
        )
        for index, engine_id in enumerate(engine_ids(request_id, options.prompt_index, params.n))
    ]


def _check_id(token_id: int, vocab_size: int, param: str) -> None:
    if not 0 <= token_id < vocab_size:
        raise InvalidRequestError(
            f"{param} has token id {token_id}, which is not in the vocabulary "
            f"(0 to {vocab_size - 1})",
            param=param,
        )
