"""The choice of the precision of a model and of its KV cache."""

from __future__ import annotations

import torch

from ...core.errors import ConfigError
from ..linear.base import LinearBackend, LinearSpec
from ..machine.device import has_bfloat16
from ..weights.packed import WeightFormat

_KV_CACHE_DTYPES = {
    "auto": None,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""Types by their names in --kv-cache-dtype."""


def choose_dtype(
    name: str,
    published: torch.dtype | WeightFormat,
    device: torch.device,
    linear: type[LinearBackend],
) -> torch.dtype:
    """The precision to compute a model in. `name` is the value of --dtype.

    "auto" is bfloat16 if the device computes it natively, else float32, with two exceptions: a
    model published in float16 stays in float16 on a GPU, and a model whose weights stay packed in
    bfloat16 is computed in bfloat16.

    Raises ConfigError for float16 on a CPU.
    """
    if name == "auto":
        if device.type == "cuda" and published is torch.float16:
            return torch.float16
        wants_bfloat16 = has_bfloat16(device) or _stays_packed(published, device, linear)
        return torch.bfloat16 if wants_bfloat16 else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    if dtype is torch.float16 and device.type == "cpu":
        raise ConfigError("--dtype float16 needs a GPU: CPUs compute bfloat16 or float32")
    return dtype


def choose_kv_cache_dtype(name: str) -> torch.dtype | None:
    """The 8-bit type that a value of --kv-cache-dtype names; None for "auto"."""
    return _KV_CACHE_DTYPES[name]


def _stays_packed(
    published: torch.dtype | WeightFormat, device: torch.device, linear: type[LinearBackend]
) -> bool:
    if isinstance(published, torch.dtype):
        return False
    spec = LinearSpec(dtype=torch.bfloat16, device=device)
    return not linear.reasons_against(spec) and linear.keeps(spec, published)
