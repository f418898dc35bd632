"""The value of `Draft.probs` that a draft model passes to the verifier.

Shape suffixes: k draft tokens, v vocabulary of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftProbs:
    """The distributions that the tokens of one draft were drawn from, one row per token.

    Each token was drawn with exactly its row's probabilities, after temperature and filters. A
    draft of likeliest tokens has no DraftProbs: no random number was involved.
    """

    probs_kv: torch.Tensor
    """float32 [k, v] on the target's device; each row sums to 1."""
