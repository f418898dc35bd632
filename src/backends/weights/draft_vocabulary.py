"""A draft model's reduced head, which has logits for the most common tokens only.

The head is most of what a small model reads per token. In a vocabulary of 50,000, a few thousand
tokens make up nearly all text (FR-Spec, Zhao et al. 2025). The names are those of EAGLE-3's
checkpoints: `draft_vocab_size` in config.json, and the tensor `d2t`. A logit's token id is the
logit's index plus its element of `d2t`.

Shape suffixes: d logits of the draft model.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ...core.errors import ConfigError
from .checkpoint import Checkpoint

DRAFT_TO_TARGET = "d2t"


def read_draft_vocabulary(checkpoint: Checkpoint) -> torch.Tensor | None:
    """Read the target's token id of each logit, int64 [d], ascending; None if the head is full.

    Raises ConfigError when the tensor is missing or invalid.
    """
    size = checkpoint.config.draft_vocab_size
    if size is None:
        return None
    offsets_d = checkpoint.tensor(DRAFT_TO_TARGET)
    return check_draft_vocabulary(offsets_d, size, checkpoint.config.vocab_size, checkpoint.path)


def check_draft_vocabulary(
    offsets_d: torch.Tensor, size: int, vocab_size: int, path: Path
) -> torch.Tensor:
    """Turn the tensor `d2t` of the draft in `path` into the target's token ids, int64 [d].

    Raises ConfigError when it is invalid.
    """
    if offsets_d.shape != (size,) or offsets_d.is_floating_point():
        raise ConfigError(
            f"{DRAFT_TO_TARGET} of {path} must be {size} integers, "
            f"not {offsets_d.dtype} {list(offsets_d.shape)}"
        )
    token_ids_d = offsets_d.long() + torch.arange(size)
    is_ascending = bool((token_ids_d[1:] > token_ids_d[:-1]).all())
    if not is_ascending or token_ids_d[0] < 0 or token_ids_d[-1] >= vocab_size:
        raise ConfigError(
            f"{DRAFT_TO_TARGET} of {path} must give ascending token ids below {vocab_size}"
        )
    return token_ids_d


def as_offsets(token_ids_d: torch.Tensor) -> torch.Tensor:
    """Turn ascending token ids into the tensor `d2t`."""
    return token_ids_d - torch.arange(len(token_ids_d))
