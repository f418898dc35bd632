"""One thing that an examination found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warning", "problem"]
"""note: good to know. warning: slower or less than it could be. problem: tokenmill does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The state of one part of the machine."""

    name: str
    """The part, for example "memory"."""
    state: State
    found: str
    """The facts, with numbers and units."""
    cost: str = ""
    """The price of a warning or a problem."""
    advice: str = ""
    """The remedy."""


def ok(name: str, found: str) -> Finding:
    """A part that is as it should be."""
    return Finding(name=name, state="ok", found=found)
