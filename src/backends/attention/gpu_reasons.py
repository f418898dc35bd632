"""What is in the way of packages whose kernels compute in half precision on NVIDIA GPUs."""

from __future__ import annotations

import torch

from ..machine.device import compute_capability
from .base import AttentionSpec

_DTYPES = (torch.float16, torch.bfloat16)


def reasons_of_gpu(spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
    """Why no such kernel can serve the spec: device, precision, heads."""
    reasons = []
    if capability is None:
        reasons.append(f"it runs on NVIDIA GPUs, not on {spec.device.type}")
    if spec.dtype not in _DTYPES:
        name = str(spec.dtype).removeprefix("torch.")
        reasons.append(f"it computes in float16 or bfloat16, not in {name}")
    if spec.num_heads % spec.num_kv_heads:
        reasons.append(f"{spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads")
    return reasons


def reasons_of_machine() -> tuple[tuple[int, int] | None, list[str]]:
    """The compute capability of the GPU here, and what is missing if there is none."""
    if not torch.cuda.is_available():
        return None, [f"no CUDA device: torch {torch.__version__} finds none"]
    capability = compute_capability(torch.device("cuda"))
    return capability, [] if capability is not None else ["the GPU here is not one by NVIDIA"]
