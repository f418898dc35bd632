"""Compares the quantization of a checkpoint with the one that --quantization names."""

from __future__ import annotations

from ...core.errors import ConfigError
from .checkpoint import Checkpoint
from .quantization.methods import METHODS

QUANTIZATIONS = (*METHODS, "gguf")
"""The values of --quantization, which are vLLM's."""


def check_quantization(expected: str | None, checkpoint: Checkpoint) -> None:
    """Raise ConfigError unless the checkpoint is quantized as expected; None expects nothing."""
    found = checkpoint.quantization
    if expected is None or expected == found:
        return
    if expected not in QUANTIZATIONS:
        raise ConfigError(
            f"--quantization {expected!r} is unknown; known: {', '.join(QUANTIZATIONS)}"
        )
    raise ConfigError(
        f"--quantization says {expected}, but {checkpoint.path} "
        f"{'is not quantized' if found is None else f'is quantized with {found}'}"
    )
