"""What errors about unknown names say: the nearest name, and those that are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 8
"""Names in one message; more are counted."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'. Did you mean 'x'?' for the nearest known name, or nothing."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if not near and len(name) >= 3:  # the beginning of a name, or a part of it
        near = [longer for longer in names if name in longer]
    return f". Did you mean {near[0]!r}?" if near else ""


def near_and_known(name: str, known: Iterable[str]) -> str:
    """'. Did you mean 'x'? Known: w, x, y.', or '. Known: w, x, y.' where none is near."""
    names = list(known)
    return f"{did_you_mean(name, names) or '.'} Known: {listed(names) or 'none'}."


def listed(names: Sequence[str]) -> str:
    """The names joined by commas, eight at most; the rest as a number."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
