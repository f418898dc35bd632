"""The device that the engine computes on, and its properties."""

from __future__ import annotations

import torch

from ...core.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """Return the named device; "auto" is the GPU if there is one.

    Raises ConfigError for an unknown name, and for "cuda" without a GPU.
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


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16; emulated, it is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" in _cpu_flags()


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Return an NVIDIA GPU's compute capability, (9, 0) for 9.0; None for any other device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability(device)


def count_processors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; 1 for other devices, which emulate kernels."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _cpu_flags() -> str:
    """Return the processor's features; empty outside Linux, where float32 is the safe choice."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""
