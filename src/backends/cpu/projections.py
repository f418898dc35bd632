"""A decoder's matrix products by the native CPU library, and the choice between it and torch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from gguf import GGMLQuantizationType

from ...core.interfaces import Progress
from ...core.log import get_logger
from ..linear.projections import ACTIVATIONS, GateUp, Projection, Weights
from ..machine.compiling import BuildError
from ..machine.device import has_bfloat16
from ..weights.quantized import QuantizedMatrix
from .library import Library, load_library
from .packed_weights import (
    GGUF_FORMATS,
    PackedLinear,
    WeightArena,
    make_linear_call,
    pack_gguf,
    pack_linear,
)

log = get_logger("model")


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLinear:
    """A product with packed weights. With `gate_up` it computes silu(gate) * up."""

    library: Library
    packed: PackedLinear
    bias: torch.Tensor | None
    """float32."""
    out_dtype: torch.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], self.packed.out_features, dtype=self.out_dtype)
        call = make_linear_call(x, self.packed, self.bias, out)
        self.library.linear(ctypes.byref(call))
        return out

    @property
    def num_parameters(self) -> int:
        bias = 0 if self.bias is None else self.bias.numel()
        return int(self.packed.struct.n) * self.packed.in_features + bias

    @property
    def num_bytes(self) -> int:
        return self.packed.num_bytes + (0 if self.bias is None else self.bias.nbytes)


class NativeProjections:
    """Makes native products. Packs bfloat16 weights, and quantized weights without conversion."""

    def __init__(self, library: Library, activation: str, *, keeps_quantized: bool) -> None:
        self._library = library
        self._activation = activation
        self._keeps_quantized = keeps_quantized
        self._arena = WeightArena()

    def keeps(self, kind: GGMLQuantizationType) -> bool:
        return self._keeps_quantized and kind in GGUF_FORMATS

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> NativeLinear:
        return self._make(self._pack(weights), bias, torch.bfloat16)

    def gate_up(self, weights: Weights, bias: torch.Tensor | None) -> Projection:
        if self._activation != "silu":
            return GateUp(self.linear(weights, bias), ACTIVATIONS[self._activation])
        return self._make(self._pack_gate_up(weights), bias, torch.bfloat16)

    def head(self, weights: Weights) -> NativeLinear:
        return self._make(self._pack(weights), None, torch.float32)

    def _make(
        self, packed: PackedLinear, bias: torch.Tensor | None, out_dtype: torch.dtype
    ) -> NativeLinear:
        return NativeLinear(
            library=self._library,
            packed=packed,
            bias=None if bias is None else bias.float().contiguous(),
            out_dtype=out_dtype,
        )

    def _pack(self, weights: Weights) -> PackedLinear:
        if isinstance(weights, QuantizedMatrix):
            return pack_gguf(weights.rows, weights.kind, arena=self._arena)
        return pack_linear(weights, arena=self._arena)

    def _pack_gate_up(self, weights: Weights) -> PackedLinear:
        if isinstance(weights, QuantizedMatrix):
            half = weights.rows.shape[0] // 2
            gate, up = weights.rows[:half], weights.rows[half:]
            return pack_gguf(gate, weights.kind, up=up, arena=self._arena)
        gate_weight, up_weight = weights.chunk(2)
        return pack_linear(gate_weight, up=up_weight, arena=self._arena)


def keeps_quantized(kind: GGMLQuantizationType) -> bool:
    """Whether matrices of this kind should stay quantized, because native kernels are faster."""
    if kind not in GGUF_FORMATS:
        return False
    try:
        return load_library().suits_this_cpu
    except BuildError:
        return False


def native_projections(
    activation: str, *, keeps_quantized: bool, progress: Progress
) -> NativeProjections | None:
    """Native products, or None if torch computes instead.

    The log says why: torch's products are faster, or the library is not available.
    """
    try:
        library = load_library(progress)
    except BuildError as error:
        log.warning("native_cpu_kernels_missing", reason=str(error), lost="about half of the speed")
        return None
    # Portable kernels use no bfloat16 instructions. On a CPU with such instructions, torch uses
    # them and is faster. On other CPUs torch emulates them, and is two to four times slower than
    # these kernels. Quantized weights do not change the choice: compared with torch in float32,
    # portable kernels are 1.7 times faster for one token, but two times slower for eight tokens and
    # eight times slower for a prompt.
    if not library.suits_this_cpu and has_bfloat16(torch.device("cpu")):
        log.info(
            "torch_computes_projections",
            reason="this CPU has only portable native kernels, which are slower than torch",
            otherwise="TOKENMILL_CPU_ISA=portable",
        )
        return None
    return NativeProjections(library, activation, keeps_quantized=keeps_quantized)
