"""Sampling parameters of a request, validated when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from .errors import InvalidRequestError
from .grammar import Grammar
from .read_only_collections import ReadOnlyDict

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
GREEDY_BELOW = 1e-5


class OutputKind(StrEnum):
    """Content of each output of a stream: all so far, only the new part, or all at the end."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled. Names and meanings are those of vLLM.

    `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 switch off that filter.
    `max_tokens` None means all tokens for which the context has room. With a `seed` the tokens
    depend only on the prompt and these parameters. `logprobs` k returns the chosen token and the k
    most likely ones, computed from the model's raw logits.

    Raises InvalidRequestError, whose `param` is the name of the invalid field.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: Grammar | None = None
    """The answer follows this grammar and ends with it, also before `min_tokens`."""
    output_kind: OutputKind = OutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        object.__setattr__(self, "output_kind", OutputKind(self.output_kind))
        _check_ranges(self)
        _check_stops(self)
        _check_logit_bias(self)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise _invalid("grammar", f"must be a Grammar, got {type(self.grammar).__name__}")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", ReadOnlyDict(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """True when sampling takes the most likely token, without noise."""
        return self.temperature < GREEDY_BELOW

    def with_changes(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        return replace(self, **changes)


# name: (type, minimum, maximum, whether the minimum itself is allowed)
_RANGES: dict[str, tuple[type, float, float, bool]] = {
    "n": (int, 1, MAX_N, True),
    "max_tokens": (int, 1, 2**31, True),
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
}
_OPTIONAL = {"max_tokens", "seed", "logprobs"}


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
            raise _invalid(name, f"must be in {start}{low:g}, {high:g}], got {value}")
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
