"""Offers tokenmill's own weight formats: the quantization methods of Hugging Face directories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .methods import ReadMethod

TOKENMILL_API = (1, 1)

_NAMES = ("awq", "compressed-tensors", "fp8", "gptq", "mxfp4")


def _own(name: str) -> ReadMethod:
    from .methods import METHODS

    return METHODS[name]


@hookimpl
def register(registry: Registry) -> None:
    for name in _NAMES:
        registry.weight_format(name, partial(_own, name))
