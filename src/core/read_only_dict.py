"""A dict that cannot be changed, for what plugins are shown of requests."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyDict(dict[K, V]):
    """A dict, so that JSON, msgspec and `dataclasses.asdict` take it, but without a way to write."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this cannot be changed: it belongs to a request; change a copy, dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
