"""One thing that an examination found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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


def _finding(state: State, name: str, found: str, *, cost: str = "", advice: str = "") -> Finding:
    return Finding(name=name, state=state, found=found, cost=cost, advice=advice)


ok, note = partial(_finding, "ok"), partial(_finding, "note")
warning, problem = partial(_finding, "warning"), partial(_finding, "problem")
