"""A dict and a list that plugins cannot change by mistake. Reading them is as fast as usual."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def _refuse(given: dict[Any, Any] | list[Any], *_: object, **__: object) -> Any:
    kind = "dict" if isinstance(given, dict) else "list"
    raise TypeError(
        f"this {kind} belongs to a request and is read-only; change a copy, {kind}(...)"
    )


class ReadOnlyDict(dict[K, V]):
    """A read-only dict. A subclass of dict, so that JSON, msgspec and `asdict` accept it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class ReadOnlyList(list[V]):
    """A list that only its owner changes, with the methods of `list`: `list.append(tokens, 7)`."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
