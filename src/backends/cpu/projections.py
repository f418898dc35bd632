"""The native CPU linear backend."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from ...core.interfaces import Progress
from ..linear.base import ACTIVATIONS, LinearCapabilities, LinearSpec, Projection
from ..linear.torch import GateUp
from ..machine.compiling import BuildError
from ..machine.device import has_bfloat16
from ..weights.formats.gguf_blocks import FLOAT16
from ..weights.formats.relaying import relaid_format, relay
from ..weights.packed import PackedWeights, WeightFormat, Weights, stack
from .embedding import NativeEmbedding
from .native.library import Activation, InputPrecision, Layout, Library, load_library
from .packed_weights import (
    PackedLinear,
    WeightArena,
    join,
    layout_for,
    make_linear_call,
    pack_linear,
    pack_weights,
    packed_bytes,
)

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU}
"""Native activations by their names in `linear.base.ACTIVATIONS`."""
_BYTE_SETS = {"avx512bf16", "avx512vnni", "avxvnni", "i8mm", "dotprod"}
"""Instruction sets that multiply and add bytes in one instruction. Others need five instructions if
both bytes are signed; there, products of 32 rows take half the time in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLinear:
    """A product with packed weights. With `gate_up` it computes activation(gate) * up."""

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
        return self.packed.num_rows * self.packed.in_features + bias

    @property
    def num_bytes(self) -> int:
        return self.packed.num_bytes + (0 if self.bias is None else self.bias.nbytes)


class CPULinear:
    """Native products in bfloat16, which keep packed weights of the formats that the kernels read,
    and in float32 with weights in float16. Other weights are packed in the type of the inputs. See
    LinearBackend."""

    name = "cpu"
    capabilities = LinearCapabilities(builds=True, measures=True, looks_up=True)
    inputs = InputPrecision.INT8
    """The precision of the inputs of products with packed weights."""

    def __init__(self, spec: LinearSpec) -> None:
        self._library = load_library()
        self._dtype = spec.dtype
        self._arena = WeightArena()

    @classmethod
    def build(cls, spec: LinearSpec, progress: Progress) -> None:
        """Build the native library. Raises BuildError if that fails."""
        if spec.device.type == "cpu" and _has_kernels(spec):
            load_library(progress)

    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        if spec.device.type != "cpu":
            return [f"its kernels run on CPUs, not on {spec.device.type}"]
        if not _has_kernels(spec):
            dtype = str(spec.dtype).removeprefix("torch.")
            return [f"it computes in bfloat16, not in {dtype}, which torch computes exactly"]
        try:
            library = load_library()
        except BuildError as error:
            return [f"it has no native library, which costs about half of the speed: {error}"]
        # Portable kernels use no bfloat16 instructions. On a CPU with such instructions, torch uses
        # them and is faster. On other CPUs torch emulates them, and is two to four times slower
        # than these kernels.
        is_slow = has_bfloat16(spec.device) or spec.dtype is torch.float32
        if not library.suits_this_cpu and is_slow:
            return [
                "this CPU has only portable native kernels, which are slower than torch "
                "(TOKENMILL_CPU_ISA=portable forces them)"
            ]
        return []

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        """See LinearBackend. Portable kernels keep none by default: torch in float32, with
        dequantized weights, is two times as fast for eight tokens, and eight times for a prompt."""
        has_layout = layout_for(relaid_format(format)) is not None
        has_kernels = (format == FLOAT16) is (spec.dtype is torch.float32)
        return has_layout and has_kernels and load_library().suits_this_cpu

    @classmethod
    def packed_bytes(
        cls,
        spec: LinearSpec,
        format: WeightFormat | torch.dtype,
        num_rows: int,
        num_inputs: int,
    ) -> int:
        """See LinearBackend: some formats get a layout that is larger than in the file."""
        kept = format if isinstance(format, torch.dtype) else relaid_format(format)
        return packed_bytes(kept, num_rows, num_inputs)

    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Projection:
        relaid = [self._relaid(one) for one in segments]
        packed = [self._pack(_stacked(alike)) for alike in _by_format(relaid)]
        return self._make(join(packed), bias, self._dtype)

    def gate_up(
        self, gate: Weights, up: Weights, bias: torch.Tensor | None, activation: str
    ) -> Projection:
        gate, up = self._relaid(gate), self._relaid(up)
        native = _ACTIVATIONS.get(activation)
        if native is None or _format_of(gate) != _format_of(up):
            return GateUp(self.linear([gate, up], bias), ACTIVATIONS[activation])
        return self._make(self._pack(gate, up, native), bias, self._dtype)

    def head(self, weights: Weights) -> NativeLinear:
        """See LinearBackend. A head does not round its inputs to one int8: this would change logits
        directly, and caused a quarter of the KL divergence that rounding all inputs causes."""
        relaid = self._relaid(weights)
        packed = self._pack(relaid, inputs=self._head_inputs(relaid))
        return self._make(packed, None, torch.float32)

    def embedding(self, weights: PackedWeights | NativeLinear) -> NativeEmbedding:
        """See LinearBackend. Packed weights get an arena of their own, because ranks move them to
        memory that they share."""
        if isinstance(weights, NativeLinear):
            return NativeEmbedding(weights.packed, self._dtype)
        relaid = self._relaid(weights)
        if isinstance(relaid, PackedWeights):
            return NativeEmbedding(pack_weights(relaid), self._dtype)
        return NativeEmbedding(pack_linear(relaid, dtype=self._dtype), self._dtype)

    def _head_inputs(self, weights: Weights) -> InputPrecision:
        """The faster one of the two precisions that are exact enough for logits."""
        is_slow = self._library.instruction_set not in _BYTE_SETS and _has_bytes(weights)
        return InputPrecision.FLOAT if is_slow else InputPrecision.TWO_INT8

    def _relaid(self, weights: Weights) -> Weights:
        """Return weights in a format of the kernels, or as a tensor if none holds their numbers."""
        if isinstance(weights, torch.Tensor):
            return weights
        relaid = relay(weights)
        return weights.dequantize().to(self._dtype) if relaid is None else relaid

    def _make(
        self, packed: PackedLinear, bias: torch.Tensor | None, out_dtype: torch.dtype
    ) -> NativeLinear:
        return NativeLinear(
            library=self._library,
            packed=packed,
            bias=None if bias is None else bias.float().contiguous(),
            out_dtype=out_dtype,
        )

    def _pack(
        self,
        weights: Weights,
        up: Weights | None = None,
        activation: Activation = Activation.SILU,
        *,
        inputs: InputPrecision | None = None,
    ) -> PackedLinear:
        if isinstance(weights, PackedWeights):
            assert up is None or isinstance(up, PackedWeights)
            return pack_weights(
                weights,
                up=up,
                activation=activation,
                arena=self._arena,
                inputs=self.inputs if inputs is None else inputs,
            )
        assert up is None or isinstance(up, torch.Tensor)
        return pack_linear(
            weights, up=up, activation=activation, dtype=self._dtype, arena=self._arena
        )


class ExactCPULinear(CPULinear):
    """Like CPULinear, but products with packed weights do not round their inputs to int8."""

    inputs = InputPrecision.FLOAT

    def _head_inputs(self, weights: Weights) -> InputPrecision:
        return InputPrecision.FLOAT


def _has_kernels(spec: LinearSpec) -> bool:
    """Whether products of this type are native. In float32, the weights must be in float16."""
    is_half = spec.dtype is torch.float32 and spec.format == FLOAT16
    return spec.dtype is torch.bfloat16 or is_half


def _has_bytes(weights: Weights) -> bool:
    """Whether products multiply numbers of 8 bits with signs."""
    layout = layout_for(weights.format) if isinstance(weights, PackedWeights) else None
    return layout in (Layout.BYTES, Layout.IQ4, Layout.SUPER_IQ4)


def _format_of(weights: Weights) -> WeightFormat | None:
    return weights.format if isinstance(weights, PackedWeights) else None


def _by_format(segments: Sequence[Weights]) -> list[list[Weights]]:
    """Successive segments of the same format."""
    return [list(alike) for _, alike in groupby(segments, key=_format_of)]


def _stacked(alike: Sequence[Weights]) -> Weights:
    """Segments of the same format as one."""
    if len(alike) == 1:
        return alike[0]
    packed = [one for one in alike if isinstance(one, PackedWeights)]
    if packed:
        return stack(packed)
    return torch.cat([one for one in alike if isinstance(one, torch.Tensor)])
