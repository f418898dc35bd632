"""A dict that cannot be changed, for fields of requests that plugins can read."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyDict(dict[K, V]):
    """A read-only dict. A subclass of dict, so that JSON, msgspec and `asdict` accept it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this dict belongs to a request and is read-only; change a copy, dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
