"""What the suites for computing slots share: they need torch, which the other suites do not."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class LazyModule:
    """A module that is imported when a test first uses it, so that collecting needs no torch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)


def devices_to_try(device: str | None) -> list[torch.device]:
    """Return the named device; by default the GPU, if there is one, and then the CPU."""
    import torch

    if device is not None:
        return [torch.device(device)]
    names = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]
