"""The device that the engine computes on, and its properties."""

from __future__ import annotations

import sys

import torch

from ...core.errors import ConfigError
from .places import visible_gpus


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


def name_gpus() -> list[str]:
    """The GPUs that torch finds, named as in CUDA_VISIBLE_DEVICES."""
    number = torch.cuda.device_count()
    return (visible_gpus() or [str(index) for index in range(number)])[:number]


def has_bfloat16(device: torch.device) -> bool:
    """Whether torch computes bfloat16 on the device with instructions for it.

    Without such instructions it is emulated, which is slower than float32.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # torch is asked, and not the probe of backends/cpu: the question is about torch's kernels, and
    # the probe needs a compiler. Outside Linux, torch's products in bfloat16 are untested, and
    # float32 is the safe choice.
    names = [name for name, is_there in torch.cpu.get_capabilities().items() if is_there]
    return sys.platform == "linux" and any("bf16" in name for name in names)


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
