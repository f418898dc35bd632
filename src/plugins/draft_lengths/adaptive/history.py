"""What is remembered of one request's drafts; lengths.py writes and reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class DraftHistory:
    """How well drafts did lately, and when to try again where they did badly."""

    accepted: float = 0.0
    """Draft tokens accepted, older ones counting less."""
    tried: float = 0.0
    """Draft tokens accepted, and first ones rejected; older ones counting less."""
    probe_interval: int = 0
    """Steps between two probes while drafts do not pay; 0: there was none since they did."""
    probe_at: int = 0
    """The step from which on a probe is due; told anew by each draft that was verified."""
    is_probe: bool = False
    """Whether what was asked for last is a probe."""
    found: float = 1.0
    """The part of lately asked-for drafts that was found."""
    misses: int = 0
    """Drafts asked for since one was found."""
    ask_at: int = 0
    """While it takes turns: the step of the next one."""
    asks_again: bool = False
    """Whether that is the second half of a turn."""
