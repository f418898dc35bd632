"""The plugin that registers the native CPU linear backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core import kinds
from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from ..linear.base import LinearBackend

TOKENMILL_API = (1, 1)

_ACTIVATIONS = ("int8", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class CPULinearOptions:
    """The table [linear_backend] for the native kernels."""

    activations: str = field(
        default="int8",
        metadata={
            "help": "inputs of products with packed weights: int8 (rounded, with one scale per 32 "
            "inputs) or bfloat16 (not rounded; slower for more than a few rows)"
        },
    )

    def __post_init__(self) -> None:
        if self.activations not in _ACTIVATIONS:
            raise ValueError(f"activations must be one of {', '.join(_ACTIVATIONS)}")


def _cpu_linear(options: CPULinearOptions) -> type[LinearBackend]:
    """Native kernels for CPUs, which compute with packed weights as they are."""
    from .projections import CPULinear, ExactCPULinear

    return CPULinear if options.activations == "int8" else ExactCPULinear


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.LINEAR_BACKEND, "cpu", _cpu_linear, options=CPULinearOptions)
