"""Which device and which precision the engine computes in."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType

from ..core.errors import ConfigError

_KV_CACHE_DTYPES = {
    "auto": None,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""By their names in --kv-cache-dtype."""


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU if there is one.

    Raises ConfigError for a device that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device must be auto, cpu or cuda, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: torch finds no GPU here; is the driver installed, and is this torch "
            "built for it?"
        )
    return device


def choose_dtype(
    name: str, published: torch.dtype | GGMLQuantizationType, device: torch.device
) -> torch.dtype:
    """The precision of that name; "auto" is bfloat16 where the device computes it natively, else
    float32. A model that was published in float16 stays in it on a GPU; one that was published
    quantized, and can stay so on a CPU, is computed in bfloat16.

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
    """The 8-bit type of a --kv-cache-dtype; None for "auto"."""
    return _KV_CACHE_DTYPES[name]


def has_bfloat16(device: torch.device) -> bool:
    """Whether it has instructions for bfloat16; without them torch emulates it, slower than
    float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" in _cpu_flags()


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Of an NVIDIA GPU, (9, 0) for 9.0; None for any other device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability(device)


def _stays_quantized(published: torch.dtype | GGMLQuantizationType, device: torch.device) -> bool:
    if device.type != "cpu" or isinstance(published, torch.dtype):
        return False
    from .cpu.projections import keeps_quantized

    return keeps_quantized(published)


def _cpu_flags() -> str:
    """The processor's features; only Linux tells them, elsewhere float32 is the safe choice."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""
