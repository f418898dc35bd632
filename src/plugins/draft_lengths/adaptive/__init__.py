"""Adaptive draft lengths: they follow the measured gain and cost of drafts, down to no drafts.

A draft of k tokens yields a + a^2 + ... + a^k tokens on average, if each token is accepted with
probability a once those before it are (Leviathan et al. 2023). Verifying a draft makes the step
longer. Asking for drafts does so, too, even if none are found. Drafts pay while they increase the
tokens of a step by a larger factor than its duration.

acceptance.py measures the gain, costs.py the cost. phases.py decides when to try drafts and when to
measure steps without drafts again. lengths.py chooses the lengths.
"""

from __future__ import annotations

from ....plugin import Registry, hookimpl, kinds
from .lengths import AdaptiveDraftLength

TOKENMILL_API = (1, 1)

__all__ = ["AdaptiveDraftLength"]


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.DRAFT_LENGTH, "adaptive", AdaptiveDraftLength, switch=True)
