"""Draft lengths that follow what drafts bring and what they cost on this machine, down to none.

A draft of k tokens, of which each is accepted with probability a if those before it are, brings
a + a^2 + ... + a^k tokens (Leviathan et al. 2023). Verifying it makes the step longer; so does asking
for drafts, whether or not any are found. Requests get drafts while the tokens of a step grow more than
its duration. acceptance.py measures the first, costs.py the second, phases.py decides when drafts are
tried and when steps without drafts are measured again, lengths.py chooses the lengths.
"""

from __future__ import annotations

from ....plugin import Registry, hookimpl
from .lengths import AdaptiveDraftLength

TOKENMILL_API = (1, 1)

__all__ = ["AdaptiveDraftLength"]


@hookimpl
def register(registry: Registry) -> None:
    registry.draft_length("adaptive", AdaptiveDraftLength, switches={"speculative_adaptive": True})
