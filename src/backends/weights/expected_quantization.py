"""Compares the quantization of a checkpoint with the one that --quantization names."""

from __future__ import annotations

from collections.abc import Collection

from ...core.errors import ConfigError
from .checkpoint import Checkpoint
from .quantization.methods import METHODS


def check_quantization(
    expected: str | None, checkpoint: Checkpoint, methods: Collection[str] = METHODS
) -> None:
    """Raise ConfigError unless the checkpoint is quantized as expected; None expects nothing.

    `methods` are the known ones. The values of --quantization are vLLM's.
    """
    found = checkpoint.quantization
    if expected is None or expected == found:
        return
    known = (*methods, "gguf")
    if expected not in known:
        raise ConfigError(f"--quantization {expected!r} is unknown; known: {', '.join(known)}")
    raise ConfigError(
        f"--quantization says {expected}, but {checkpoint.path} "
        f"{'is not quantized' if found is None else f'is quantized with {found}'}"
    )
