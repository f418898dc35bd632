"""Reasons why kernels for NVIDIA GPUs cannot serve a spec, or do not run on this machine."""

from __future__ import annotations

import torch

from ..machine.device import compute_capability
from .base import AttentionSpec
from .reasons import reasons_of_dtype, reasons_of_heads

_OLDEST = (8, 0)
"""Compute capability of the oldest GPUs with bfloat16 and asynchronous copies. Our CUDA kernels
need both, and without them Triton keeps tiles in slow local memory."""


def reasons_of_half_precision(spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
    """Return why kernels in half precision cannot serve the spec: device, precision, heads.

    `capability` is the GPU's compute capability; None if the device is not an NVIDIA GPU.
    """
    return [
        *_reasons_of_vendor(spec, capability),
        *reasons_of_dtype(spec, (torch.float16, torch.bfloat16)),
        *reasons_of_heads(spec),
    ]


def reasons_of_device(spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
    """Return why kernels cannot run on the spec's device: it is not an NVIDIA GPU, or too old."""
    return [*_reasons_of_vendor(spec, capability), *reasons_of_capability(capability)]


def reasons_of_capability(capability: tuple[int, int] | None) -> list[str]:
    """Return why a GPU is too old; nothing when it is new enough or None."""
    if capability is None or capability >= _OLDEST:
        return []
    needed, present = (".".join(map(str, version)) for version in (_OLDEST, capability))
    return [f"it needs compute capability {needed} or newer, this GPU has {present}"]


def reasons_of_head_size(spec: AttentionSpec) -> list[str]:
    """Return why FlashAttention and xformers do not take the heads: their number of elements."""
    if spec.head_size % 8 == 0 and spec.head_size <= 256:
        return []
    return [f"heads must have a multiple of 8 elements, at most 256, not {spec.head_size}"]


def reasons_of_machine() -> tuple[tuple[int, int] | None, list[str]]:
    """Return the compute capability of this machine's GPU, or None and the reason."""
    if not torch.cuda.is_available():
        return None, [f"no CUDA device: torch {torch.__version__} finds none"]
    capability = compute_capability(torch.device("cuda"))
    return capability, [] if capability is not None else ["the GPU of this machine is not NVIDIA's"]


def _reasons_of_vendor(spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
    return [] if capability else [f"it runs on NVIDIA GPUs, not on {spec.device.type}"]
