"""The choice of the precision of a model and of its KV cache."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType

from ...core.errors import ConfigError
from ..machine.device import has_bfloat16

_KV_CACHE_DTYPES = {
    "auto": None,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""Types by their names in --kv-cache-dtype."""


def choose_dtype(
    name: str, published: torch.dtype | GGMLQuantizationType, device: torch.device
) -> torch.dtype:
    """The precision to compute a model in. `name` is the value of --dtype.

    "auto" is bfloat16 if the device computes it natively, else float32, with two exceptions: a
    model published in float16 stays in float16 on a GPU, and a quantized model that stays quantized
    on a CPU is computed in bfloat16.

    Raises ConfigError for float16 on a CPU.
    """
    if name == "auto":
        if device.type == "cuda" and published is torch.float16:
            return torch.float16
        wants_bfloat16 = has_bfloat16(device) or _stays_quantized(published, device)
        return torch.bfloat16 if wants_bfloat16 else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    if dtype is torch.float16 and device.type == "cpu":
        raise ConfigError("--dtype float16 needs a GPU: CPUs compute bfloat16 or float32")
    return dtype


def choose_kv_cache_dtype(name: str) -> torch.dtype | None:
    """The 8-bit type that a value of --kv-cache-dtype names; None for "auto"."""
    return _KV_CACHE_DTYPES[name]


def _stays_quantized(published: torch.dtype | GGMLQuantizationType, device: torch.device) -> bool:
    if device.type != "cpu" or isinstance(published, torch.dtype):
        return False
    from ..cpu.projections import keeps_quantized

    return keeps_quantized(published)
