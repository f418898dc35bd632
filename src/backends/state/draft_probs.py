"""What a draft model hands the verifier through `Draft.probs`.

Shape suffixes: k draft tokens, v vocabulary of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftProbs:
    """The distributions that the tokens of one draft were drawn from, one row per token.

    Only a draft whose tokens were drawn at random has them: each with exactly its row's
    probabilities, after temperature and filters if there were any. A draft of likeliest tokens is
    certain, and comes without.
    """

    probs_kv: torch.Tensor
    """float32 [k, v] on the target's device; each row sums to 1."""
