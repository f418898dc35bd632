"""Prompts in the shapes in which LLM takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import InvalidRequestError

T = TypeVar("T")
Tokens = str | Sequence[int]
Prompt = Tokens | Mapping[str, Any]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Tokens]:
    """The prompts that were given as one or as a list. Raises InvalidRequestError."""
    is_one = isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable)
    if is_one or (prompts and all(isinstance(item, int) for item in prompts)):
        return [_as_tokens(prompts)]  # type: ignore[arg-type]
    return [_as_tokens(prompt) for prompt in prompts]  # type: ignore[arg-type]


def _as_tokens(prompt: Prompt) -> Tokens:
    """The text or token ids of a prompt. Raises InvalidRequestError for other things in it."""
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) == 1 and prompt.keys() <= {"prompt", "prompt_token_ids"}:
        (tokens,) = prompt.values()
        return tokens  # type: ignore[no-any-return]
    raise InvalidRequestError(
        "a prompt in braces has either 'prompt' or 'prompt_token_ids', "
        f"got {', '.join(map(repr, prompt)) or 'nothing'}",
        param="prompt",
    )


def check_kind(params: object, kind: type) -> None:
    """Raise InvalidRequestError for parameters in another shape, for example a dict."""
    if not isinstance(params, kind):
        raise InvalidRequestError(
            f"parameters are {kind.__name__}(...), got {type(params).__name__}", param="params"
        )


def one_each(given: T | Sequence[T], num_prompts: int, name: str, kind: type[T]) -> list[T]:
    """The parameters of each prompt. Raises ValueError for a list of another length, and
    InvalidRequestError for parameters that are not of this kind."""
    for params in given if isinstance(given, list | tuple) else (given,):
        check_kind(params, kind)
    if not isinstance(given, list | tuple):
        return [given] * num_prompts  # type: ignore[list-item]
    if len(given) != num_prompts:
        raise ValueError(
            f"there are {num_prompts} prompts and {len(given)} {name}; "
            "give one for each prompt, or one for all"
        )
    return list(given)
