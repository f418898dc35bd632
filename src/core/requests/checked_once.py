"""Dataclasses that check themselves when a program makes them, and not when a message has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from .read_only_collections import ReadOnlyDict

Data = TypeVar("Data")


def checked_once(*read_only: str) -> Callable[[type[Data]], type[Data]]:
    """Decorator of a dataclass whose `_check` runs after `__init__`. msgspec calls no `__init__`:
    what arrives in a message was checked by its sender.

    `read_only`: fields with dicts and lists, which are made read-only again after decoding.
    """

    def decorate(data: type[Data]) -> type[Data]:
        make: Callable[..., None] = data.__init__

        @wraps(make)
        def __init__(self: Any, **fields: Any) -> None:
            make(self, **fields)
            self._check()

        def restore(self: Any) -> None:
            for name in read_only:
                object.__setattr__(self, name, frozen(getattr(self, name)))

        setattr(data, "__init__", __init__)  # noqa: B010
        if read_only:  # msgspec calls it. The `__init__` of the dataclass was made without it
            setattr(data, "__post_init__", restore)  # noqa: B010
        return data

    return decorate


def frozen(value: Any) -> Any:
    """A copy of plain JSON with read-only dicts, and tuples instead of lists."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return ReadOnlyDict({name: frozen(inner) for name, inner in value.items()})
    return value
