"""Typed access to loosely typed metadata, with errors that name the key and the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ....core.errors import ConfigError

_MAX_INTEGER = 2**31 - 1
"""No model has a size as large. Products of a few such sizes can still be computed."""
_LARGEST = {
    **dict.fromkeys(("num_hidden_layers", "max_window_layers", "block_count"), 4096),
    "vocab_size": 2**24,
}
"""Fields that set the lengths of lists: a hostile number would fill the memory."""

_MAX_MESSAGE = 300


def largest(name: str) -> int:
    """The largest integer that a field may have."""
    return _LARGEST.get(name, _MAX_INTEGER)


def one_line(error: object) -> str:
    """Return another library's message as a short line: it may quote a damaged file."""
    text = "".join(char if char.isprintable() else " " for char in str(error)[:_MAX_MESSAGE])
    return " ".join(text.split())


class Fields:
    """A mapping from JSON or GGUF; a key whose value is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    def get(self, name: str) -> Any:
        """Return the value without a check, or None."""
        return self._values.get(name)

    def keys(self) -> set[str]:
        return set(self._values)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer. Raises ConfigError for another type, or if absent without default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "an integer")
        if abs(value) > largest(name):
            raise self._wrong(name, value, f"at most {largest(name)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number. Raises ConfigError for others, or if absent without default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if not _is_finite(value):
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of finite numbers. Raises ConfigError for others, or if it is absent."""
        values = self._present(name, None)
        if not isinstance(values, list | tuple):
            raise self._wrong(name, values, "a list of numbers")
        return tuple(Fields({name: value}, self.source).number(name) for value in values)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean. Raises ConfigError for another type."""
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string. Raises ConfigError for another type, or if absent without default."""
        value = self._present(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.get(name) is None else self.integer(name)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def part(self, name: str) -> Fields | None:
        """Return a nested mapping, or None if absent. Raises ConfigError for another type."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Fields(value, f"{name} in {self.source}")

    def replaced(self, values: Mapping[str, Any]) -> Fields:
        """A copy of the fields, with some values replaced."""
        return Fields({**self._values, **values}, self.source)

    def _present(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{self.source} lacks {name}")
        return value

    def _wrong(self, name: str, value: Any, wanted: str) -> ConfigError:
        return ConfigError(f"{name} in {self.source} must be {wanted}, got {value!r:.80}")


def _is_finite(value: float) -> bool:
    """Whether it is a number that a float can hold; JSON has integers that are too large."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
