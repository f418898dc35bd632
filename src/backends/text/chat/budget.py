"""Bounds the time and the memory of one rendering of a chat template.

A template comes with the model, so it may be hostile: nested loops, a text that is doubled forty
times, a list of two lists of two lists, and so on. Every operation is charged to a budget. If its
result may be much larger than its operands, it is charged before it runs.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2.utils import Namespace

_MAX_STEPS = 200_000
"""Loop iterations, calls, filters and operators; about 0.5 s."""
_STEPS_PER_MESSAGE = 2_000
"""The templates of llama.cpp's collection take at most 130."""
ITEMS_PER_STEP = 16
"""Items of a list that are handled in the time of a step."""
_MAX_SECONDS = 10.0
"""CPU time. It bounds steps that take long themselves, such as comparisons of large texts."""
_STEPS_PER_LOOK = 64
"""Reading the clock takes as long as a step."""
_MAX_CHARS = 64 * 1024 * 1024
_CHARS_PER_INPUT_CHAR = 64
"""A template makes several copies of each message: trimmed, split, joined."""
_MAX_DEPTH = 64
"""Nesting of lists and objects."""
_ITEM_CHARS = 8
"""Memory that an item of a list is charged for."""
_MAX_INTEGER_BITS = 1 << 16


class TooMuchWork(jinja2.TemplateError):
    """The template needs too much time or memory."""


class Budget:
    """The remaining budget of one rendering. `chat` holds its messages."""

    def __init__(self, chat: list[dict[str, Any]]) -> None:
        self._sizes: dict[int, tuple[int, int, object]] = {}
        """Size and depth of containers by id. The containers are kept, so that no id is reused."""
        self._steps_left = _MAX_STEPS + _STEPS_PER_MESSAGE * len(chat)
        self._next_look = self._steps_left
        self._deadline = time.thread_time() + _MAX_SECONDS
        self._chars_left = _MAX_CHARS + _CHARS_PER_INPUT_CHAR * self.size(chat)

    def step(self, count: int = 1) -> None:
        """Charge for steps."""
        self._steps_left -= count
        if self._steps_left < self._next_look:
            self._next_look = max(self._steps_left - _STEPS_PER_LOOK, 0)
            if self._steps_left < 0 or time.thread_time() > self._deadline:
                raise TooMuchWork("it takes too many steps")

    def require(self, num_chars: int) -> None:
        """Check that a value of this size may be made, without charging for it."""
        if num_chars > self._chars_left:
            raise TooMuchWork("it makes too much text")

    def keep(self, value: Any) -> Any:
        """Charge for a new value, and return it."""
        if isinstance(value, str | bytes):
            self._pay(len(value))
        elif isinstance(value, list | tuple | dict | set | frozenset):
            self.step(len(value) // ITEMS_PER_STEP)
            self._pay(_ITEM_CHARS * (1 + len(value)))
            self.require(self.size(value))
        elif isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
            raise TooMuchWork("it computes too large a number")
        return value

    def size(self, value: Any) -> int:
        """Return about how many characters a value has when it is written out."""
        return self._measure(value, 0)[0]

    def depth(self, value: Any) -> int:
        """Return how deeply lists and objects are nested in a value."""
        return self._measure(value, 0)[1]

    def _pay(self, num_chars: int) -> None:
        self.require(num_chars)
        self._chars_left -= num_chars

    def _measure(self, value: Any, level: int) -> tuple[int, int]:
        if isinstance(value, str | bytes):
            return len(value) + 2, 0
        if isinstance(value, Namespace):
            raise TooMuchWork("it uses a namespace as a value")  # its size changes
        if not isinstance(value, list | tuple | dict | set | frozenset):
            return 8, 0
        known = self._sizes.get(id(value))
        if known is None:
            known = self._sizes[id(value)] = (*self._measure_items(value, level), value)
        return known[:2]

    def _measure_items(self, value: Any, level: int) -> tuple[int, int]:
        if level > _MAX_DEPTH:
            raise TooMuchWork("it nests lists too deeply")
        items = [*value, *value.values()] if isinstance(value, dict) else value
        measured = [self._measure(item, level + 1) for item in items]
        depth = 1 + max((depth for _, depth in measured), default=0)
        if depth > _MAX_DEPTH:
            raise TooMuchWork("it nests lists too deeply")
        return 2 + sum(size + 2 for size, _ in measured), depth


current_budget: ContextVar[Budget] = ContextVar("current_budget")
"""The budget of the rendering that runs in this context; unset while a template is compiled."""
