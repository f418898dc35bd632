"""vLLM's limits on images, videos and audio in a prompt: checked, but without effect.

The engine takes text only. The limits are accepted so that a command or a script that was written
for vLLM starts; the log says that they have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import ConfigError

_EXAMPLE = '\'{"image": 3, "video": {"count": 1, "width": 640, "height": 640}}\''
_HINTS = {
    "image": ("width", "height"),
    "video": ("num_frames", "width", "height"),
    "audio": ("length",),
}
"""By kind of input, the sizes that may stand beside `count`."""


def check_limits(limits: str | Mapping[str, object] | None) -> None:
    """Check `limit_mm_per_prompt`: JSON, vLLM's older `image=3,video=1`, or a mapping.

    Raises ConfigError for an unknown kind of input and for a number that is negative or none.
    """
    for kind, limit in (_read(limits) if isinstance(limits, str) else limits or {}).items():
        if kind not in _HINTS:
            raise ConfigError(f"--limit-mm-per-prompt knows {', '.join(_HINTS)}, but not {kind!r}")
        numbers = limit if isinstance(limit, Mapping) else {"count": limit}
        for name, number in numbers.items():
            _check_number(kind, name, number)


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
