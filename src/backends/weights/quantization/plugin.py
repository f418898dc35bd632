"""Offers tokenmill's own weight formats: the quantization methods of Hugging Face directories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .methods import ReadMethod

TOKENMILL_API = (1, 1)

_FORMATS = {
    "awq": "AWQ, version gemm: 4 bits with zero points.",
    "compressed-tensors": "compressed-tensors of llm-compressor: 2 to 8 bits, int8 and FP8.",
    "fp8": "FP8 with a scale per matrix, per output or per block.",
    "gptq": "GPTQ, versions 1 and 2: 2, 3, 4 or 8 bits, with or without act-order.",
    "mxfp4": "MXFP4 of gpt-oss.",
}


def _own(name: str, doc: str) -> Callable[[], ReadMethod]:
    def make() -> ReadMethod:
        from .methods import METHODS

        return METHODS[name]

    make.__doc__ = doc
    return make


@hookimpl
def register(registry: Registry) -> None:
    for name, doc in _FORMATS.items():
        registry.offer(kinds.WEIGHT_FORMAT, name, _own(name, doc))
