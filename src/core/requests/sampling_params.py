"""Sampling parameters of a request: each is declared once, and validated when it is given.

The bodies of the HTTP APIs, the flags of commands, the defaults that a model or an operator may
set, and docs/api.md follow from the declarations in SamplingParams.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_type_hints

import msgspec
from msgspec import Meta

from ..errors import InvalidRequestError, named
from ..wording.value_errors import describe_type, explain_value
from .checked_once import checked_once, frozen
from .grammar import Grammar
from .pooling import Pooling
from .read_only_collections import ReadOnlyDict

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_EXTRA_ARGS_BYTES = 16384
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

# Places where a parameter can be given
COMPLETIONS, RESPONSES, FLAG, MODEL = "completions", "responses", "flag", "model"
PLACES = {
    COMPLETIONS: "bodies of completions and chat completions",
    RESPONSES: "bodies of responses",
    FLAG: "flags of `generate` and `chat`, and `/set` in a chat",
    MODEL: "a model's generation_config, and `--override-generation-config`",
}
BODIES = (COMPLETIONS, RESPONSES)
EVERYWHERE = (*BODIES, FLAG, MODEL)
IN_CHAT = (COMPLETIONS, FLAG)

Count = Annotated[int, Meta(ge=0, le=2**31)]
TokenId = Annotated[int, Meta(ge=0, le=2**31)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
BadWord = Annotated[str, Meta(min_length=1, max_length=256)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
LogitBias = Annotated[
    Mapping[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)
]
Logprobs = Annotated[int, Meta(ge=0, le=1000)]


class OutputKind(StrEnum):
    """Content of each output of a stream."""

    CUMULATIVE = "cumulative"
    """Each output has all of the completion so far."""
    DELTA = "delta"
    """Each output has only the new part."""
    FINAL = "final"
    """There is one output, at the end, with everything."""


def sampled(default: Any, meaning: str, *places: str, alone: Any = None) -> Any:
    """A parameter that is a plain value, with its meaning and the places where it can be given.

    `alone`: a type of bodies for one value without a list.
    """
    return field(default=default, metadata={"meaning": meaning, "places": places, "alone": alone})


@checked_once("logit_bias", "extra_args")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling of one request. Names and meanings are those of vLLM.

    The defaults here are not those of the model: its generation_config may set others, which
    `default_sampling_params` of the engine has.

    Raises InvalidRequestError, whose `param` is the name of the invalid field.
    """

    n: Annotated[int, Meta(ge=1, le=MAX_N)] = sampled(
        1, "number of completions of the prompt; they share its KV cache", COMPLETIONS
    )
    max_tokens: Count | None = sampled(
        16, "maximum number of generated tokens; None: all that fit", *IN_CHAT
    )
    min_tokens: Count = sampled(
        0, "number of tokens before which neither a stop nor the model ends it", COMPLETIONS
    )
    temperature: Annotated[float, Meta(ge=0, le=100)] = sampled(
        1.0, "divides the logits; 0: take the most likely token; higher: more varied", *EVERYWHERE
    )
    top_p: Annotated[float, Meta(gt=0, le=1)] = sampled(
        1.0, "draw among the most likely tokens with this total probability", *EVERYWHERE
    )
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] = sampled(
        0, "draw among this number of most likely tokens; 0 or -1: among all", *EVERYWHERE
    )
    min_p: Annotated[float, Meta(ge=0, le=1)] = sampled(
        0.0, "least probability of a drawn token, as a fraction of the highest", *IN_CHAT, MODEL
    )
    top_n_sigma: Annotated[float, Meta(ge=0, le=100)] = sampled(
        0.0, "standard deviations that a drawn logit may be below the best; 0: any", *IN_CHAT
    )
    presence_penalty: Penalty = sampled(
        0.0, "subtracted from the logits of tokens that the completion has", *BODIES
    )
    frequency_penalty: Penalty = sampled(
        0.0, "subtracted from a token's logit each time that the completion has it", *BODIES
    )
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = sampled(
        1.0, "above 1, it makes tokens of prompt and completion less likely", *EVERYWHERE
    )
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = sampled(
        None, "the same seed gives the same tokens; None: the engine has its own", *BODIES, FLAG
    )
    stop: Annotated[tuple[StopText, ...], Meta(max_length=MAX_STOP_STRINGS)] = sampled(
        (), "texts that end the completion; one text may come without a list", *BODIES, alone=str
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=1024)] = sampled(
        (), "tokens that end the completion, besides those of the model", *BODIES
    )
    include_stop_str_in_output: bool = sampled(
        False, "leave the stop text or stop token in the text", COMPLETIONS
    )
    ignore_eos: bool = sampled(False, "go on after the model's own end tokens", *BODIES)
    logit_bias: LogitBias | None = sampled(
        None, "added to the logits of these token ids", COMPLETIONS
    )
    allowed_token_ids: (
        Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=1 << 17)] | None
    ) = sampled(None, "only these tokens are generated; None: all", COMPLETIONS)
    bad_words: Annotated[tuple[BadWord, ...], Meta(max_length=128)] = sampled(
        (), "texts that are not generated: their last tokens are forbidden there", COMPLETIONS
    )
    logprobs: Logprobs | None = sampled(
        None, "return log-probabilities of the token and of this number of most likely ones"
    )
    logprob_token_ids: Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=128)] | None = (
        sampled(None, "return those of these tokens instead; needs `logprobs`", COMPLETIONS)
    )
    prompt_logprobs: Logprobs | None = sampled(
        None, "the same as `logprobs` for the tokens of the prompt", COMPLETIONS
    )
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31)] | None = sampled(
        None, "leave this number of the prompt's tokens; -1: all that fit; None: all", COMPLETIONS
    )
    truncation_side: Literal["left", "right"] = sampled(
        "left", "side that truncation drops: left keeps the end of the prompt", COMPLETIONS
    )
    skip_special_tokens: bool = sampled(
        True, "leave control tokens, such as ends of turns, out of the text", *BODIES
    )
    stream_interval: Annotated[int, Meta(ge=1, le=2**31)] = sampled(
        1, "number of tokens after which a stream yields an output", COMPLETIONS
    )
    grammar: Grammar | None = None
    """The answer follows this grammar and ends with it, even before `min_tokens`."""
    pooling: Pooling | None = None
    """Return an embedding of the prompt. Needs `max_tokens` 0, `n` 1 and no `prompt_logprobs`."""
    extra_args: Mapping[str, Any] | None = None
    """Plain JSON for logits processors, by argument."""
    output_kind: OutputKind = OutputKind.CUMULATIVE
    """Whether an output has everything so far or only the new part."""

    def __new__(cls, **fields: Any) -> Self:  # before __init__, which would raise a TypeError
        for name in fields.keys() & REFUSED.keys():
            raise _invalid(name, f"is not supported: {REFUSED[name]}")
        return object.__new__(cls)

    def _check(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in _LISTS:
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(given))
            elif SAMPLED[name].default is not None:
                object.__setattr__(self, name, ())
        object.__setattr__(self, "output_kind", OutputKind(self.output_kind))
        _check_types(self)
        _check_together(self)
        if self.pooling is not None:
            object.__setattr__(self, "pooling", Pooling(self.pooling))
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


SAMPLED = {one.name: one for one in fields(SamplingParams) if one.metadata}
"""The parameters that are plain values."""
KINDS: Mapping[str, Any] = get_type_hints(SamplingParams, include_extras=True)
"""Types of the parameters, with their ranges."""
_Sampled = msgspec.defstruct("_Sampled", [(name, KINDS[name]) for name in SAMPLED])
_LISTS = [name for name in SAMPLED if "tuple" in str(KINDS[name])]


def body_struct(body: str, base: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct like `base`, with the parameters that this body has. None, their default, means not
    given."""
    kinds = {name: SAMPLED[name].metadata["alone"] | KINDS[name] for name in sampled_in(body)}
    found = [(name, kind | None, None) for name, kind in kinds.items()]
    return msgspec.defstruct("Sampled", found, bases=(base,), kw_only=True)


def sampled_in(place: str) -> list[str]:
    """Names of the parameters that can be given in this place."""
    return [name for name, one in SAMPLED.items() if place in one.metadata["places"]]


def meaning_of(name: str) -> str:
    """The meaning of a parameter that is a plain value."""
    return str(SAMPLED[name].metadata["meaning"])


def described(name: str) -> str:
    """The type and the range of a parameter, in words."""
    return describe_type(KINDS[name])


def _check_types(params: SamplingParams) -> None:
    with suppress(msgspec.ValidationError):  # the usual case needs no copy
        msgspec.convert(params, _Sampled, from_attributes=True)
        return
    values = {name: _builtin(getattr(params, name)) for name in SAMPLED}
    try:
        msgspec.convert(values, _Sampled)
    except msgspec.ValidationError as error:
        name, text = explain_value(error, _Sampled)
        assert name is not None, "the values are an object"
        got = "" if ", got" in text else f", got {values[name]!r:.40}"
        text = text.replace(name, named(name), 1)
        raise InvalidRequestError(text + got, param=name) from error


def _builtin(value: Any) -> Any:
    """numpy's float64 is a float of Python's, which msgspec does not know."""
    return float(value) if isinstance(value, float) else value


def _check_together(params: SamplingParams) -> None:
    """Check what types cannot say."""
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise _invalid(
            "min_tokens",
            f"must be at most {named('max_tokens')} ({params.max_tokens}), got {params.min_tokens}",
        )
    if params.truncate_prompt_tokens == 0:
        raise _invalid("truncate_prompt_tokens", "must be -1, or at least 1")
    if params.logprob_token_ids is not None and params.logprobs is None:
        raise _invalid("logprob_token_ids", "needs logprobs")
    if not all(word.strip() for word in params.bad_words):
        raise _invalid("bad_words", "takes words that are not only space")
    if params.pooling is not None and (
        params.max_tokens != 0 or params.n != 1 or params.prompt_logprobs is not None
    ):
        raise _invalid("pooling", "needs max_tokens 0, n 1 and no prompt_logprobs")


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


def _invalid(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{named(param)} {what}", param=param)
