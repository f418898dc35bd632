"""Checks the variables that a request sets for the chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ....core.errors import InvalidRequestError, named
from ....core.wording.suggest import listed

MAX_VALUE_CHARS = 1024
"""Characters of a text."""
MAX_VALUES = 64
"""Items of a list."""
_RESERVED = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "bos_token", "eos_token", "unk_token", "pad_token", "raise_exception", "strftime_now",
        "chat_template", "tokenize", "range", "dict", "namespace", "cycler", "joiner", "loop",
    }
)  # fmt: skip
"""Variables and functions that the server sets."""


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_budget(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= 2**31


def _is_effort(value: object) -> bool:
    return value in ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _is_date(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9 ,./:-]{1,40}", value) is not None


TEMPLATE_KWARGS: dict[str, tuple[Callable[[object], bool], str]] = {
    "enable_thinking": (_is_flag, "true or false"),
    "thinking": (_is_flag, "true or false"),
    "preserve_thinking": (_is_flag, "true or false"),
    "clear_thinking": (_is_flag, "true or false"),
    "thinking_budget": (_is_budget, "an integer, -1 or more"),
    "reasoning_effort": (_is_effort, "none, minimal, low, medium, high, xhigh or max"),
    "date_string": (_is_date, "a date of at most 40 letters, digits and ' ,./:-'"),
}
"""Variables of common templates: (check, description of valid values). A template that does not
read one ignores it, so that clients may send it to every model."""


def check_template_kwargs(
    template_kwargs: Mapping[str, Any] | None, variables: Collection[str] = ()
) -> dict[str, Any]:
    """Return the variables that a request sets, without those that are null.

    `variables` are those that the template reads. Raises InvalidRequestError for another variable,
    unless it is in TEMPLATE_KWARGS, and for a wrong value.
    """
    checked = {}
    for name, value in (template_kwargs or {}).items():
        if name in _RESERVED:
            raise _invalid(f"chat_template_kwargs must not set {name}: the server does")
        if name not in TEMPLATE_KWARGS and name not in variables:
            known = listed(sorted({*TEMPLATE_KWARGS, *variables} - _RESERVED))
            raise _invalid(
                f"the model's chat template does not read {name!r:.40} of chat_template_kwargs; "
                f"known: {known}"
            )
        is_valid, expected = TEMPLATE_KWARGS.get(name, _ANY)
        if value is not None and not is_valid(value):
            raise _invalid(named(f"chat_template_kwargs.{name}") + f" must be {expected}")
        checked[name] = value
    return {name: value for name, value in checked.items() if value is not None}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= MAX_VALUES and all(map(_is_scalar, value))
    return _is_scalar(value)


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VALUE_CHARS
    return isinstance(value, bool | int | float)


_ANY = (_is_plain, f"true, false, a number, a text of at most {MAX_VALUE_CHARS} characters, or a "
        f"list of at most {MAX_VALUES} of these")  # fmt: skip


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="chat_template_kwargs")
