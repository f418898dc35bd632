"""The devices on which the suites of attention and linear backends run."""

from __future__ import annotations

import torch


def devices_to_try(device: str | None) -> list[torch.device]:
    """The named device; by default the GPU, if there is one, and then the CPU."""
    if device is not None:
        return [torch.device(device)]
    names = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]
