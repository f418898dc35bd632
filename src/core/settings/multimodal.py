"""The settings of images in prompts, with vLLM's names. Video and audio are understood, and 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ..errors import ConfigError
from .checking import read_object

MAX_IMAGES = 8
"""Images per prompt, unless --limit-mm-per-prompt says something else."""
_EXAMPLE = '\'{"image": 3, "video": {"count": 1, "width": 640, "height": 640}}\''
_HINTS = {
    "image": ("width", "height"),
    "video": ("num_frames", "width", "height"),
    "audio": ("length",),
}
"""By kind of input, the sizes that may stand beside `count`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimit:
    """The images that one prompt may have."""

    count: int = MAX_IMAGES
    width: int | None = None
    height: int | None = None
    """The size in pixels for which memory is reserved; None: the largest that the model reads."""


def image_limit(limits: str | Mapping[str, object] | None) -> ImageLimit:
    """The limit for images in `limit_mm_per_prompt`: JSON, vLLM's older `image=3,video=1`, or a
    mapping.

    Raises ConfigError for an unknown kind of input and for a number that is negative or none.
    """
    given = _read(limits) if isinstance(limits, str) else limits or {}
    for kind, limit in given.items():
        if kind not in _HINTS:
            raise ConfigError(f"--limit-mm-per-prompt knows {', '.join(_HINTS)}, but not {kind!r}")
        for name, number in _numbers(limit).items():
            _check_number(kind, name, number)
    return ImageLimit(**_numbers(given.get("image", {})))  # type: ignore[arg-type]


def read_processor_kwargs(given: str | Mapping[str, object]) -> dict[str, object]:
    """`mm_processor_kwargs` as a mapping. Raises ConfigError if it is none, and for values that
    another process cannot get."""
    found = read_object("--mm-processor-kwargs", given, '{"do_image_splitting": false}')
    try:
        msgspec.msgpack.encode(found)
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"--mm-processor-kwargs: {error}") from error
    return found


def _numbers(limit: object) -> Mapping[str, object]:
    return limit if isinstance(limit, Mapping) else {"count": limit}


def _check_number(kind: str, name: str, number: object) -> None:
    least = 0 if name == "count" else 1
    if name != "count" and name not in _HINTS[kind]:
        known = ", ".join(("count", *_HINTS[kind]))
        raise ConfigError(f"--limit-mm-per-prompt: {kind} has {known}, but not {name!r}")
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ConfigError(
            f"--limit-mm-per-prompt: {name} of {kind} must be a number, at least {least}, "
            f"got {number!r}"
        )


def _read(text: str) -> dict[str, object]:
    try:
        if "=" in text and "{" not in text:
            pairs = (item.partition("=") for item in text.split(","))
            return {kind.strip(): int(number) for kind, _, number in pairs}
        return msgspec.json.decode(text, type=dict[str, object])
    except ValueError as error:
        raise ConfigError(
            f"--limit-mm-per-prompt must be a JSON object, as in {_EXAMPLE}, got {text!r}"
        ) from error
