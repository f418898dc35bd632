"""Checks a request where it enters: everything that needs no engine, once.

An engine checks only what it alone knows: the grammar, logits processors and its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import EngineConfig
from ..errors import TOO_LONG, EngineStoppedError, InvalidRequestError, named
from ..interfaces import ModelInfo, Tokenizer
from ..requests.media import MediaItem
from ..requests.media_prompt import EnginePrompt, MediaPrompt
from ..requests.request_options import NO_OPTIONS, RequestOptions
from ..requests.sampling_params import SamplingParams
from .prompts import check_kind

MAX_PROMPT_LOGPROBS = 1 << 17
"""Log-probabilities of one prompt's tokens. Each takes about 100 bytes of memory."""
LONG_TEXT = 4096
"""Characters. Texts of this length or more are tokenized on another thread, because that takes a
millisecond or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request that has passed all checks that need no engine. Only `check` makes one."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    options: RequestOptions
    max_tokens: int
    """Maximum number of tokens to generate, even if `params` leave it open."""
    bad_word_ids: tuple[tuple[int, ...], ...]
    max_model_len: int
    """The context for which it was checked."""
    vocab_size: int
    """The vocabulary for which it was checked."""
    media: tuple[MediaItem, ...] = ()
    """The images of the prompt, in order of their places."""

    def without_pixels(self) -> CheckedRequest:
        """The request as it is sent to another process, after its pixels."""
        return self.with_pixels({}) if self.media else self

    def with_pixels(self, pixels: Mapping[bytes, bytes]) -> CheckedRequest:
        """The request with pixels by the digests of its items."""
        if not self.media:
            return self
        found = [replace(item, pixels=pixels.get(item.digest, b"")) for item in self.media]
        return replace(self, media=tuple(found))

    def refuse_stale(self, info: ModelInfo, max_model_len: int) -> None:
        """Raise EngineStoppedError if the check does not hold for this engine, which was started
        again with a smaller context or another vocabulary."""
        if self.vocab_size != info.vocab_size or self.max_model_len > max_model_len:
            raise EngineStoppedError(
                f"this request was checked for a context of {self.max_model_len} tokens and a "
                f"vocabulary of {self.vocab_size}, and the engine was started again with "
                f"{max_model_len} and {info.vocab_size}; send it again"
            )


async def check(
    prompt: EnginePrompt,
    params: SamplingParams,
    options: RequestOptions,
    *,
    tokenizer: Tokenizer,
    info: ModelInfo,
    config: EngineConfig,
    max_model_len: int,
) -> CheckedRequest:
    """Tokenize a request, a long text on another thread, and check it.

    Raises InvalidRequestError.
    """
    check_kind(params, SamplingParams)
    check_sampling_params(params, info, config.max_logprobs)
    media: tuple[MediaItem, ...] = ()
    if isinstance(prompt, MediaPrompt):
        check_media(prompt, params, info)
        media, prompt = prompt.items, prompt.token_ids
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise InvalidRequestError(
            f"a prompt is a text or a list of token ids, got {type(prompt).__name__}",
            param="prompt",
        )
    if isinstance(prompt, str):
        check_prompt_text(prompt, tokenizer, max_model_len)
        is_long = len(prompt) >= LONG_TEXT
        encode = tokenizer.encode
        prompt = await asyncio.to_thread(encode, prompt) if is_long else encode(prompt)
    checked = check_ids(
        prompt, params, options, vocab_size=info.vocab_size, max_model_len=max_model_len
    )
    if media:
        checked = replace(checked, media=media)
    if not params.bad_words:
        return checked
    return replace(checked, bad_word_ids=await _encode_bad_words(params.bad_words, tokenizer))


def check_ids(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    options: RequestOptions = NO_OPTIONS,
    *,
    vocab_size: int,
    max_model_len: int,
) -> CheckedRequest:
    """The part of `check` that needs no tokenizer.

    Raises InvalidRequestError.
    """
    ids = truncate_prompt(prompt_token_ids, params, max_model_len)
    max_tokens = room_for_output(len(ids), params, max_model_len)
    check_prompt_logprobs(len(ids), params)
    return CheckedRequest(
        prompt_token_ids=check_prompt_ids(ids, vocab_size),
        params=params,
        options=options,
        max_tokens=max_tokens,
        bad_word_ids=(),
        max_model_len=max_model_len,
        vocab_size=vocab_size,
    )


def check_media(prompt: MediaPrompt, params: SamplingParams, info: ModelInfo) -> None:
    """Check that each image stands in its own places of a prompt.

    Raises InvalidRequestError.
    """
    if info.media is None:
        raise InvalidRequestError(f"model {info.name} reads no images", param="prompt")
    if params.truncate_prompt_tokens is not None and prompt.items:
        raise InvalidRequestError(
            "a prompt with images cannot be truncated: leave out truncate_prompt_tokens",
            param="truncate_prompt_tokens",
        )
    placeholder, end = info.media.placeholder_token_id, 0
    for item in prompt.items:
        tokens = prompt.token_ids[item.start : item.end]
        if end > item.start or not item.is_shown_by(tokens, placeholder):
            num_rows = item.num_tokens - item.num_between
            raise InvalidRequestError(
                f"the image at token {item.start} does not stand in {num_rows} placeholders",
                param="prompt",
            )
        if item.is_whole and item.num_tokens > info.media.largest_span_tokens:
            raise InvalidRequestError(
                f"the image at token {item.start} has {item.num_tokens} tokens that one step "
                f"computes; the largest such image of the model has "
                f"{info.media.largest_span_tokens}",
                param="prompt",
            )
        end = item.end


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
            code=TOO_LONG,
        )


def check_prompt_ids(prompt_token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the ids as a tuple.

    Raises InvalidRequestError for an empty prompt, and for ids outside the vocabulary.
    """
    ids = tuple(prompt_token_ids)
    if not ids:
        raise InvalidRequestError("the prompt is empty; give at least one token", param="prompt")
    if set(map(type, ids)) != {int}:
        raise InvalidRequestError("prompt token ids must be integers", param="prompt")
    for token_id in (min(ids), max(ids)):
        _check_id(token_id, vocab_size, "prompt")
    return ids


def check_sampling_params(params: SamplingParams, info: ModelInfo, max_logprobs: int) -> None:
    """Check the parameters that depend on the model or the engine.

    Raises InvalidRequestError for token ids outside the vocabulary, and for too many logprobs.
    """
    for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"):
        _check_id(max(getattr(params, name) or (0,)), info.vocab_size, name)
    if params.min_tokens and params.allowed_token_ids is not None:
        _check_goes_on(params, info)
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None and count > max_logprobs:
            raise InvalidRequestError(
                f"at most {max_logprobs} {name} can be asked for (--max-logprobs), got {count}",
                param=name,
            )


def _check_goes_on(params: SamplingParams, info: ModelInfo) -> None:
    """Refuse a request that may generate only tokens that end it, but must not end."""
    ends = set(params.stop_token_ids)
    if not params.ignore_eos:
        ends.update(info.eos_token_ids)
    if ends.issuperset(params.allowed_token_ids or ()):
        raise InvalidRequestError(
            "allowed_token_ids has only tokens that end the request, which min_tokens forbids",
            param="allowed_token_ids",
        )


async def _encode_bad_words(
    words: Sequence[str], tokenizer: Tokenizer
) -> tuple[tuple[int, ...], ...]:
    """The token ids of each word, and of the word after a space if that is another token."""
    return await asyncio.to_thread(_bad_word_ids, words, tokenizer)


def _bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    found: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip()
        plain, spaced = (
            tuple(tokenizer.encode(text, add_special_tokens=False, parse_special=False))
            for text in (bare, f" {bare}")
        )
        found.append(plain)
        # As in vLLM. A space that is a token of its own changes nothing.
        if len(spaced) == len(plain) and spaced[:1] != plain[:1]:
            found.append(spaced)
    return tuple(filter(None, found))


def truncate_prompt(
    prompt_token_ids: Sequence[int], params: SamplingParams, max_model_len: int
) -> Sequence[int]:
    """The part of a prompt that `truncate_prompt_tokens` leaves."""
    most = params.truncate_prompt_tokens
    if most is None:
        return prompt_token_ids
    if most == -1:
        most = max_model_len - (1 if params.max_tokens is None else params.max_tokens)
    if not 0 < most < len(prompt_token_ids):
        return prompt_token_ids
    if params.truncation_side == "left":
        return prompt_token_ids[-most:]
    return prompt_token_ids[:most]


def check_prompt_logprobs(num_prompt_tokens: int, params: SamplingParams) -> None:
    """Refuse log-probabilities of a prompt that would take too much memory.

    Raises InvalidRequestError.
    """
    count = params.prompt_logprobs
    if count is None or num_prompt_tokens * (count + 1) <= MAX_PROMPT_LOGPROBS:
        return
    raise InvalidRequestError(
        f"prompt_logprobs {count} for {num_prompt_tokens} prompt tokens are "
        f"{num_prompt_tokens * (count + 1)} log-probabilities, and at most {MAX_PROMPT_LOGPROBS} "
        "are returned. Lower prompt_logprobs or shorten the prompt.",
        param="prompt_logprobs",
    )


def room_for_output(num_prompt_tokens: int, params: SamplingParams, max_model_len: int) -> int:
    """Maximum number of tokens that the request may generate.

    Raises InvalidRequestError with both numbers if prompt and max_tokens exceed the context.
    """
    room = max_model_len - num_prompt_tokens
    if room < (0 if params.max_tokens == 0 else 1):
        raise InvalidRequestError(
            f"this model's maximum context length is {max_model_len} tokens and the prompt has "
            f"{num_prompt_tokens}, which leaves no room for output. Shorten the prompt.",
            param="prompt",
            code=TOO_LONG,
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
            f"{num_prompt_tokens} and {named('max_tokens')} asks for {params.max_tokens}, together "
            f"{num_prompt_tokens + params.max_tokens}. Shorten the prompt or lower "
            f"{named('max_tokens')} to "
            f"{room}.",
            param="max_tokens",
            code=TOO_LONG,
        )
    return params.max_tokens


def _check_id(token_id: int, vocab_size: int, param: str) -> None:
    if not 0 <= token_id < vocab_size:
        raise InvalidRequestError(
            f"{param} has token id {token_id}, which is not in the vocabulary "
            f"(0 to {vocab_size - 1})",
            param=param,
        )


def default_sampling_params(
    config: EngineConfig, info: ModelInfo, given: Mapping[str, object]
) -> SamplingParams:
    """The sampling defaults, overridden by the given values. None counts as not given."""
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**{**sampling_defaults(config, info), **chosen})


def sampling_defaults(config: EngineConfig, info: ModelInfo) -> dict[str, Any]:
    """The defaults of the model and of --override-generation-config."""
    own = info.sampling_defaults if config.generation_config == "auto" else {}
    overrides = config.override_generation_config or {}
    assert isinstance(overrides, Mapping), "EngineConfig has read it"
    return {**own, **overrides}
