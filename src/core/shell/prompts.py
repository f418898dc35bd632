"""Prompts in the shapes in which LLM takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import InvalidRequestError
from ..requests.given_images import GivenImage, ImagePrompt
from ..requests.media_prompt import EnginePrompt, MediaPrompt

T = TypeVar("T")
Tokens = str | Sequence[int]
Prompt = Tokens | MediaPrompt | ImagePrompt | Mapping[str, Any]
_TOKENS = ("prompt", "prompt_token_ids")
_MEDIA = "multi_modal_data"
ReadPrompt = EnginePrompt | ImagePrompt


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[ReadPrompt]:
    """The prompts that were given as one or as a list. Raises InvalidRequestError."""
    if isinstance(prompts, str | Mapping | MediaPrompt | ImagePrompt):
        return [as_prompt(prompts)]
    is_one = isinstance(prompts, bytes) or not isinstance(prompts, Iterable)
    if is_one or (prompts and all(isinstance(item, int) for item in prompts)):
        return [as_prompt(prompts)]  # type: ignore[arg-type]
    return [as_prompt(prompt) for prompt in prompts]  # type: ignore[arg-type]


def as_prompt(prompt: Prompt) -> ReadPrompt:
    """The parts of a prompt. Raises InvalidRequestError for other things in it."""
    if not isinstance(prompt, Mapping):
        return prompt
    given = [name for name in _TOKENS if name in prompt]
    if len(given) != 1 or not prompt.keys() <= {*_TOKENS, _MEDIA}:
        raise InvalidRequestError(
            "a prompt in braces has either 'prompt' or 'prompt_token_ids', and perhaps "
            f"{_MEDIA!r}, got {', '.join(map(repr, prompt)) or 'nothing'}",
            param="prompt",
        )
    tokens: Tokens = prompt[given[0]]
    images = tuple(_images(prompt.get(_MEDIA) or {}))
    return ImagePrompt(tokens=tokens, images=images) if images else tokens


def _images(media: Mapping[str, Any]) -> Iterator[GivenImage]:
    if not isinstance(media, Mapping) or not media.keys() <= {"image"}:
        raise InvalidRequestError(f"{_MEDIA} must be {{'image': ...}}", param=_MEDIA)
    for given in media.values():
        for index, source in enumerate(given if isinstance(given, list | tuple) else [given]):
            yield GivenImage(source=source, place=f"{_MEDIA}.image[{index}]")


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
