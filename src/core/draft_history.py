"""What is remembered of one request's drafts; draft_length.py writes and reads it."""

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
    """The step from which on a probe is due, until a draft was verified."""
    is_probed: bool = False
    """Whether the last drafts were a probe."""
    num_vain: int = 0
    """Times that it was asked for drafts since there was one."""
