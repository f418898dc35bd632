"""The "did you mean" of every error that names something unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'. Did you mean 'x'?' for the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {near[0]!r}?" if near else ""
