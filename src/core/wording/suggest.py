"""Text for errors about unknown names: a similar name, and a list of the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

NEAR = 0.75
"""Ratio of difflib from which a name counts as a misspelling of another one. At its default of 0.6,
--generation-config would be near --compilation-config."""
MAX_LISTED = 8
"""Maximum number of names in one message; for the rest the message has their number."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ". Did you mean 'x'?" for the most similar known name, or "" if none is similar."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=NEAR)
    if not near and len(name) >= 3:  # the name may be the beginning or a part of a known one
        near = [longer for longer in names if name in longer]
    return f". Did you mean {near[0]!r}?" if near else ""


def near_and_known(name: str, known: Iterable[str]) -> str:
    """Return ". Did you mean 'x'? Known: w, x, y.", or ". Known: w, x, y." if none is similar."""
    names = list(known)
    return f"{did_you_mean(name, names) or '.'} Known: {listed(names) or 'none'}."


def listed(names: Sequence[str]) -> str:
    """Join the first eight names with commas, and add the number of the rest."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
