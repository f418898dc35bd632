"""A model on this machine, in the words of `tokenmill model list`."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT, HUB, QUANTIZED, DRAFT = "default", "hub cache", "quantized copy", "draft"
"""Kinds of models: where they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model that needs no download."""

    name: str
    """The value of --model or --speculative-model; of a quantized copy its name in the cache."""
    kind: str
    format: str
    """The format of the files, or of the draft model."""
    num_bytes: int
    path: str
    is_complete: bool = True
    """Whether no file of it is missing."""
