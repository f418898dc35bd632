"""Sampling parameters of a request, validated when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import msgspec

from .checked_once import checked_once, frozen
from .errors import InvalidRequestError
from .grammar import Grammar
from .pooling import Pooling
from .read_only_collections import ReadOnlyDict

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 17
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 256
MAX_LOGPROB_TOKEN_IDS = 128
MAX_EXTRA_ARGS_BYTES = 16384
TRUNCATION_SIDES = ("left", "right")
REFUSED = {
    "best_of": "use n",
    "detokenize": "outputs always have their text; remove it",
    "early_stopping": "there is no beam search; remove it",
    "guided_decoding": "use grammar",
    "length_penalty": "there is no beam search; remove it",
    "logits_processors": "use extra_args, which name the arguments of a plugin's processor",
    "structured_outputs": "use grammar",
    "use_beam_search": "there is no beam search; remove it",
}
"""Parameters of vLLM that do not exist here, each with what to use instead."""
GREEDY_BELOW = 1e-5


class OutputKind(StrEnum):
    """Content of each output of a stream."""

    CUMULATIVE = "cumulative"
    """Each output has all of the completion so far."""
    DELTA = "delta"
    """Each output has only the new part."""
    FINAL = "final"
    """There is one output, at the end, with everything."""


@checked_once("logit_bias", "extra_args")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled. Names and meanings are those of vLLM.

    The defaults here are not those of the model: its generation_config may set others, which
    `default_sampling_params` of the engine has.

    Raises InvalidRequestError, whose `param` is the name of the invalid field.
    """

    n: int = 1
    """Number of completions of the prompt, 1 to 128. They share its KV cache."""
    max_tokens: int | None = 16
    """Maximum number of generated tokens. None: all for which the context has room. 0: compute the
    prompt and generate nothing."""
    min_tokens: int = 0
    """Number of tokens before which neither a stop nor the model ends the completion."""
    temperature: float = 1.0
    """Divides the logits. 0: take the most likely token (greedy)."""
    top_p: float = 1.0
    """Draw among the most likely tokens that together have this probability. 1: among all."""
    top_k: int = 0
    """Draw among this number of most likely tokens. 0 or -1: among all."""
    min_p: float = 0.0
    """Draw among tokens of at least this fraction of the highest probability. 0: among all."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the completion has, -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit each time that the completion has the token, -2 to 2."""
    repetition_penalty: float = 1.0
    """Makes tokens of the prompt and the completion less likely if it is above 1."""
    seed: int | None = None
    """With a seed the tokens depend only on the prompt and these parameters. None: drawn from the
    engine's own seed."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; one text may come without a list. At most 16."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion, besides those of the model."""
    include_stop_str_in_output: bool = False
    """Leave the stop text or stop token in the text."""
    ignore_eos: bool = False
    """Go on after the model's own end tokens."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids, -100 to 100."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens are generated. None: all."""
    bad_words: tuple[str, ...] = ()
    """Texts that are not generated: the last token of a text is forbidden after its others."""
    logprobs: int | None = None
    """Return the log-probabilities of the chosen token and of this number of most likely ones,
    computed from the raw logits. None: of none."""
    logprob_token_ids: tuple[int, ...] | None = None
    """Return the log-probabilities of these tokens instead of the most likely ones. Needs
    `logprobs`."""
    prompt_logprobs: int | None = None
    """The same as `logprobs` for the tokens of the prompt."""
    truncate_prompt_tokens: int | None = None
    """Leave only this number of tokens of the prompt. -1: as many as there is room for with
    `max_tokens`. None: a prompt that is too long is refused."""
    truncation_side: str = "left"
    """Side on which tokens are dropped: "left" keeps the end of the prompt, "right" the start."""
    skip_special_tokens: bool = True
    """Leave control tokens, such as the mark of the end of a turn, out of the text."""
    grammar: Grammar | None = None
    """The answer follows this grammar and ends with it, also before `min_tokens`."""
    pooling: Pooling | None = None
    """Return an embedding of the prompt. Needs `max_tokens` 0, `n` 1 and no `prompt_logprobs`."""
    stream_interval: int = 1
    """Number of tokens after which a stream yields an output."""
    extra_args: Mapping[str, Any] | None = None
    """Plain JSON for logits processors, by argument."""
    output_kind: OutputKind = OutputKind.CUMULATIVE
    """Whether an output has everything so far or only the new part."""

    def __new__(cls, **fields: Any) -> Self:  # before __init__, which would raise a TypeError
        for name in fields.keys() & REFUSED.keys():
            raise _invalid(name, f"is not supported: {REFUSED[name]}")
        return object.__new__(cls)

    def _check(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        object.__setattr__(self, "output_kind", OutputKind(self.output_kind))
        object.__setattr__(self, "bad_words", tuple(self.bad_words or ()))
        for name in _TOKEN_IDS:
            ids = getattr(self, name)
            object.__setattr__(self, name, None if ids is None else tuple(ids))
        if self.pooling is not None:
            object.__setattr__(self, "pooling", Pooling(self.pooling))
            _check_pooling(self)
        _check_ranges(self)
        _check_stops(self)
        _check_token_ids(self)
        _check_bad_words(self)
        _check_truncation(self)
        _check_logit_bias(self)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise _invalid("grammar", f"must be a Grammar, got {type(self.grammar).__name__}")
        object.__setattr__(self, "extra_args", _plain(self.extra_args))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", ReadOnlyDict(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """True when sampling takes the most likely token, without noise."""
        return self.temperature < GREEDY_BELOW

    def with_changes(self, **changes: Any) -> Self:
        """A validated copy with some fields changed. Raises InvalidRequestError."""
        return replace(self, **changes)


# name: (type, minimum, maximum, whether the minimum itself is allowed)
_RANGES: dict[str, tuple[type, float, float, bool]] = {
    "n": (int, 1, MAX_N, True),
    "max_tokens": (int, 0, 2**31, True),
    "min_tokens": (int, 0, 2**31, True),
    "temperature": (float, 0.0, 100.0, True),
    "top_p": (float, 0.0, 1.0, False),
    "top_k": (int, -1, 2**31, True),
    "min_p": (float, 0.0, 1.0, True),
    "presence_penalty": (float, -2.0, 2.0, True),
    "frequency_penalty": (float, -2.0, 2.0, True),
    "repetition_penalty": (float, 0.0, 100.0, False),
    "seed": (int, -(2**63), 2**63 - 1, True),
    "logprobs": (int, 0, 2**31, True),
    "prompt_logprobs": (int, 0, 2**31, True),
    "truncate_prompt_tokens": (int, -1, 2**31, True),
    "stream_interval": (int, 1, 2**31, True),
}
_OPTIONAL = {"max_tokens", "seed", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"}
_TOKEN_IDS = {
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
    "logprob_token_ids": MAX_LOGPROB_TOKEN_IDS,
}
"""Maximum number of ids in each list."""


def _check_pooling(params: SamplingParams) -> None:
    if params.max_tokens != 0 or params.n != 1 or params.prompt_logprobs is not None:
        raise _invalid("pooling", "needs max_tokens 0, n 1 and no prompt_logprobs")


def _check_ranges(params: SamplingParams) -> None:
    for name, (kind, low, high, inclusive) in _RANGES.items():
        value = getattr(params, name)
        if value is None and name in _OPTIONAL:
            continue
        accepted = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise _invalid(
                name, f"must be {'an integer' if kind is int else 'a number'}, got {value!r}"
            )
        if not math.isfinite(value):
            raise _invalid(name, f"must be a finite number, got {value}")
        if value < low or value > high or (value == low and not inclusive):
            start = "[" if inclusive else "("
            raise _invalid(name, f"must be in {start}{low}, {high}], got {value}")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise _invalid(
            "min_tokens",
            f"must be at most max_tokens ({params.max_tokens}), got {params.min_tokens}",
        )


def _check_stops(params: SamplingParams) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise _invalid("stop", f"takes at most {MAX_STOP_STRINGS} strings, got {len(params.stop)}")
    for text in params.stop:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH:
            raise _invalid("stop", f"takes strings of 1 to {MAX_STOP_LENGTH} characters")
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _invalid(
            "stop_token_ids",
            f"takes at most {MAX_STOP_TOKEN_IDS} ids, got {len(params.stop_token_ids)}",
        )
    for token_id in params.stop_token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise _invalid("stop_token_ids", f"takes token ids, got {token_id!r}")


def _check_token_ids(params: SamplingParams) -> None:
    for name, most in _TOKEN_IDS.items():
        ids = getattr(params, name)
        if ids is None:
            continue
        if not 0 < len(ids) <= most:
            raise _invalid(name, f"takes 1 to {most} ids, got {len(ids)}")
        if set(map(type, ids)) != {int} or min(ids) < 0:
            raise _invalid(name, "takes token ids, which are integers and not negative")
    if params.logprob_token_ids is not None and params.logprobs is None:
        raise _invalid("logprob_token_ids", "needs logprobs")


def _check_bad_words(params: SamplingParams) -> None:
    if len(params.bad_words) > MAX_BAD_WORDS:
        raise _invalid("bad_words", f"takes at most {MAX_BAD_WORDS}, got {len(params.bad_words)}")
    for text in params.bad_words:
        is_text = isinstance(text, str) and 0 < len(text) <= MAX_BAD_WORD_LENGTH
        if not is_text or not text.strip():
            raise _invalid(
                "bad_words", f"takes words of 1 to {MAX_BAD_WORD_LENGTH} characters, not only space"
            )


def _check_truncation(params: SamplingParams) -> None:
    if params.truncate_prompt_tokens == 0:
        raise _invalid("truncate_prompt_tokens", "must be -1, or at least 1")
    if params.truncation_side not in TRUNCATION_SIDES:
        raise _invalid(
            "truncation_side", f"must be 'left' or 'right', got {params.truncation_side!r:.40}"
        )


def _plain(extra_args: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A read-only copy, which has only values that JSON has."""
    if extra_args is None:
        return None
    try:
        encoded = msgspec.json.encode(extra_args)
        _check_bytes(encoded)
        found = msgspec.json.decode(encoded, type=dict[str, Any])
        msgspec.msgpack.encode(found)  # for an engine in another process: integers of 64 bits
        plain = {name: frozen(value) for name, value in found.items()}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise _invalid("extra_args", "must be plain JSON values by name") from error
    return ReadOnlyDict(plain)


def _check_bytes(encoded: bytes) -> None:
    if len(encoded) > MAX_EXTRA_ARGS_BYTES:
        raise _invalid(
            "extra_args", f"takes at most {MAX_EXTRA_ARGS_BYTES} bytes of JSON, got {len(encoded)}"
        )


def _check_logit_bias(params: SamplingParams) -> None:
    bias = params.logit_bias
    if bias is None:
        return
    if len(bias) > MAX_LOGIT_BIAS:
        raise _invalid("logit_bias", f"takes at most {MAX_LOGIT_BIAS} tokens, got {len(bias)}")
    for token_id, value in bias.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise _invalid("logit_bias", f"has token ids as keys, got {token_id!r}")
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -100 <= value <= 100
        ):
            raise _invalid(
                "logit_bias", f"must be in [-100, 100], got {value!r} for token {token_id}"
            )


def _invalid(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {what}", param=param)
