"""Estimates the sizes of the results of operators, methods and filters, before they are made.

Each function takes a budget and the operands, and returns a number of characters. Only operations
whose result may be much larger than their operands have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .budget import Budget, TooMuchWork

Size = Callable[..., int]

_MAX_PADDING = 100_000
_MAX_INDENT = 16
_ITEM_CHARS = 64
"""Memory that a piece of a split text is charged for."""
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*(\*|\d{5})")
_WIDE_BRACE = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{5})")


def size_of_format(budget: Budget, text: Any, *args: Any, **kwargs: Any) -> int:
    """str.format and format_map: every field may be the largest argument."""
    if _WIDE_BRACE.search(text):
        raise TooMuchWork("it formats to too large a width")
    return _filled(budget, text, text.count("{"), (*args, *kwargs.values()))


def _percent(budget: Budget, left: Any, *right: Any, **kwargs: Any) -> int:
    if not isinstance(left, str | bytes):
        return 0
    text = left if isinstance(left, str) else left.decode("latin-1")
    if _WIDE_PERCENT.search(text):
        raise TooMuchWork("it formats to too large a width")
    return _filled(budget, text, text.count("%"), (*right, *kwargs.values()))


def _filled(budget: Budget, text: str, num_fields: int, values: Sequence[Any]) -> int:
    return len(text) + num_fields * max(map(budget.size, values), default=0)


def _plus(budget: Budget, left: Any, right: Any) -> int:
    return _length(left) + _length(right)


def _times(budget: Budget, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() + right.bit_length()) // 8
    if isinstance(left, int):
        return max(left, 0) * (budget.size(right) if _length(right) else 0)
    return max(right, 0) * budget.size(left) if isinstance(right, int) and _length(left) else 0


def _power(budget: Budget, left: Any, right: Any) -> int:
    if not (isinstance(left, int) and isinstance(right, int)) or right < 0:
        return 0
    if left.bit_length() * right > 1 << 16:
        raise TooMuchWork("it computes too large a number")
    return 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _replaced(budget: Budget, text: Any, old: Any, new: Any, count: Any = -1) -> int:
    return len(str(text)) + str(text).count(str(old)) * len(str(new))


def _joined(budget: Budget, separator: Any, parts: Any = ()) -> int:
    return _joined_by(budget, parts, separator)


def _joined_by(budget: Budget, parts: Any, separator: Any = "", attribute: Any = None) -> int:
    num_parts = len(parts) if hasattr(parts, "__len__") else 0
    return budget.size(parts) + num_parts * budget.size(separator)


def _split(budget: Budget, text: Any, separator: Any = None, *args: Any, **kwargs: Any) -> int:
    num_parts = text.count(separator) if separator else len(text) // 2
    return _ITEM_CHARS * int(num_parts)


def _lines(budget: Budget, text: Any, *args: Any, **kwargs: Any) -> int:
    num_lines = sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))
    return _ITEM_CHARS * int(num_lines)


def _padded(budget: Budget, text: Any, width: Any = 80, *args: Any, **kwargs: Any) -> int:
    return _limited(width, _MAX_PADDING)


def _tabs(budget: Budget, text: Any, tabsize: Any = 8) -> int:
    return len(text) * _limited(tabsize, _MAX_INDENT)


def _translated(budget: Budget, text: Any, table: Any = None) -> int:
    return len(text) * budget.size(table)


def _indented(budget: Budget, text: Any, width: Any = 4, *args: Any, **kwargs: Any) -> int:
    return (1 + str(text).count("\n")) * _limited(width, _MAX_PADDING) + len(str(text))


def _as_json(
    budget: Budget,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    *args: Any,
    **kwargs: Any,
) -> int:
    per_item = _limited(indent, _MAX_INDENT) * budget.depth(value) + budget.size(separators)
    return budget.size(value) * (1 + per_item)


def _limited(width: Any, limit: int) -> int:
    """Return a width that is given as a number of spaces or as a text."""
    number = len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
    if number > limit:
        raise TooMuchWork(f"it pads to a width of more than {limit}")
    return number


def _number_only(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise TooMuchWork("it sums lists")  # the time grows with the square of their length
    return 0


def _written(budget: Budget, value: Any) -> int:
    return budget.size(value)


OPERATOR_SIZES: dict[str, Size] = {"+": _plus, "*": _times, "%": _percent, "**": _power}

METHOD_SIZES: dict[str, Size] = {
    "replace": _replaced,
    "join": _joined,
    "split": _split,
    "rsplit": _split,
    "splitlines": _lines,
    "center": _padded,
    "ljust": _padded,
    "rjust": _padded,
    "zfill": _padded,
    "to_bytes": _padded,
    "expandtabs": _tabs,
    "translate": _translated,
}
"""By the name of a method of texts, bytes or integers."""

FILTER_SIZES: dict[str, Size] = {
    "replace": _replaced,
    "join": _joined_by,
    "format": _percent,
    "center": _padded,
    "batch": _padded,
    "slice": _padded,
    "indent": _indented,
    "tojson": _as_json,
    "sum": _number_only,
    "string": _written,
}
