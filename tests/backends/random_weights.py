"""A checkpoint of seeded random weights, for any configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tokenmill.backends.models.native.random_weights import RandomTensors
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.config.model_config import ModelConfig


def random_checkpoint(config: ModelConfig, seed: int) -> Checkpoint:
    """Return a checkpoint of random float32 weights, determined by configuration and seed."""
    return _RandomCheckpoint(config, seed)


class _RandomCheckpoint(RandomTensors):
    """Tensors, and what a checkpoint says beside them; see Checkpoint for the methods."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        super().__init__(seed, self.name, config)

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def name(self) -> str:
        return f"random-{self.config.architecture}"

    @property
    def files(self) -> Mapping[Path, int]:
        return {}

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def quantization(self) -> None:
        return None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Empty: generation always ends at max_tokens."""
        return ()

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        return {}
