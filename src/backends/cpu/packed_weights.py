"""Weight matrices in the native library's layout, and products with them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from ...core.errors import ConfigError
from ..machine.host_memory import HostMemory
from ..weights.formats.gguf_blocks import GGUFBlocks
from ..weights.packed import PackedWeights, WeightFormat
from .native.library import Activation, Element, InputPrecision, Layout, Source, load_library
from .native.structures import LinearCallStruct, PackedLinearStruct, WeightRowsStruct

_ALIGNMENT = 4096
_CHUNK_BYTES = 256 << 20

_SOURCES: Mapping[GGMLQuantizationType, tuple[Source, Layout]] = {
    GGMLQuantizationType.Q4_0: (Source.Q4_0, Layout.BLOCKS4),
    GGMLQuantizationType.Q4_1: (Source.Q4_1, Layout.BLOCKS4),
    GGMLQuantizationType.Q5_0: (Source.Q5_0, Layout.BLOCKS5),
    GGMLQuantizationType.Q5_1: (Source.Q5_1, Layout.BLOCKS5),
    GGMLQuantizationType.Q8_0: (Source.Q8_0, Layout.BYTES),
    GGMLQuantizationType.IQ4_NL: (Source.IQ4_NL, Layout.IQ4),
    GGMLQuantizationType.IQ4_XS: (Source.IQ4_XS, Layout.SUPER_IQ4),
    GGMLQuantizationType.MXFP4: (Source.MXFP4, Layout.E2M1),
    GGMLQuantizationType.Q2_K: (Source.Q2_K, Layout.TWO),
    GGMLQuantizationType.Q3_K: (Source.Q3_K, Layout.THREE),
    GGMLQuantizationType.Q4_K: (Source.Q4_K, Layout.SUPER4),
    GGMLQuantizationType.Q5_K: (Source.Q5_K, Layout.SUPER5),
    GGMLQuantizationType.Q6_K: (Source.Q6_K, Layout.SIX),
    GGMLQuantizationType.F16: (Source.F16, Layout.F16),
}
"""GGUF types that are packed without loss, each with its layout."""

_ELEMENTS = {torch.float32: Element.F32, torch.bfloat16: Element.BF16}
_FLOAT_INPUTS = (Layout.F32, Layout.F16)


class WeightArena:
    """Memory for the weights of a model, in a few large pieces.

    A piece is freed when the arena and everything that was allocated in the piece are gone.
    """

    def __init__(self) -> None:
        self._chunk: HostMemory | None = None
        self._used = 0

    def allocate(self, num_bytes: int) -> tuple[int, object]:
        """Allocate zeroed, page-aligned memory: its address, and the object that keeps it alive."""
        if self._chunk is None or self._used + num_bytes > self._chunk.num_bytes:
            self._chunk = HostMemory(max(num_bytes, _CHUNK_BYTES))
            self._used = 0
        address = self._chunk.address + self._used
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return address, self._chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """The packed weights of one product. With `gate_up` it is activation(x gate^T) * (x up^T)."""

    layout: Layout
    in_features: int
    out_features: int
    """Columns of a product's result. With `gate_up`, the rows of each of the two matrices."""
    num_rows: int
    """Rows of all matrices together."""
    gate_up: bool
    num_bytes: int
    """Size in memory, padding included."""
    struct: PackedLinearStruct = field(repr=False)
    """The structure for calls of the native library: that of the first segment."""
    memory: object = field(repr=False)
    """Keeps the memory alive that `struct` points to."""

    def dequantize(self) -> Tensor:
        """The weights as float32 [rows, in_features], without rounding. Gate's rows come first.

        If there are several segments, only the first.
        """
        out = torch.empty(self.struct.n, self.in_features, dtype=torch.float32)
        load_library().unpack(self.struct, out.data_ptr())
        return out

    def look_up(self, rows: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Rows of one matrix, dequantized and then rounded to bfloat16, or in float32.

        `rows` are int64 [n]; the result is [n, in_features].
        """
        assert rows.is_contiguous() and rows.dtype is torch.int64 and not self.gate_up
        out = torch.empty(len(rows), self.in_features, dtype=dtype)
        load_library().look_up(
            self.struct, rows.data_ptr(), len(rows), out.data_ptr(), _ELEMENTS[dtype]
        )
        return out

    def moved(self, copy: Callable[[Tensor], Tensor]) -> PackedLinear:
        """One matrix in other memory, to which `copy` copies its bytes."""
        held = (ctypes.c_uint8 * self.num_bytes).from_address(self.struct.data)
        memory = copy(torch.frombuffer(held, dtype=torch.uint8))
        if memory.data_ptr() == self.struct.data:
            return self
        struct = PackedLinearStruct.from_buffer_copy(self.struct)
        struct.data = memory.data_ptr()
        return replace(self, struct=struct, memory=memory)


def layout_for(format: WeightFormat) -> Layout | None:
    """The layout that keeps the numbers of a format exactly, or None if none does."""
    if not isinstance(format, GGUFBlocks) or format.kind not in _SOURCES:
        return None
    return _SOURCES[format.kind][1]


def packed_bytes(format: WeightFormat | torch.dtype, num_rows: int, num_inputs: int) -> int:
    """The memory for a matrix of a format that has a layout, or in floating point, which is packed
    in its type; padding included."""
    own = Layout.F32 if format is torch.float32 else Layout.BF16
    layout = own if isinstance(format, torch.dtype) else layout_for(format)
    struct = PackedLinearStruct(n=num_rows, k=num_inputs, layout=layout)
    return int(load_library().packed_bytes(struct))


def pack_linear(
    weight: Tensor,
    *,
    up: Tensor | None = None,
    activation: Activation = Activation.SILU,
    dtype: torch.dtype = torch.bfloat16,
    arena: WeightArena | None = None,
) -> PackedLinear:
    """Pack float weights [out, in] in `dtype`: bfloat16 (for bfloat16 inputs) or float32.

    If `up` is given, with the same shape, `weight` is the gate. Raises ConfigError for shapes that
    do not fit, and for an odd number of inputs.
    """
    if dtype not in _ELEMENTS or not weight.is_floating_point():
        raise ConfigError(f"weights of {weight.dtype} cannot be packed as {dtype}")
    _check_shapes(weight.shape, None if up is None else up.shape)
    kept = weight.detach().to(dtype).contiguous()
    kept_up = None if up is None else up.detach().to(dtype).contiguous()
    rows = WeightRowsStruct(
        rows=kept.data_ptr(),
        up_rows=None if kept_up is None else kept_up.data_ptr(),
        row_bytes=kept.shape[1] * kept.element_size(),
        source=Source.F32 if dtype is torch.float32 else Source.BF16,
    )
    struct = PackedLinearStruct(
        n=kept.shape[0],
        k=kept.shape[1],
        layout=Layout.F32 if dtype is torch.float32 else Layout.BF16,
        activation=activation,
    )
    return _pack(struct, rows, arena)


def pack_weights(
    weights: PackedWeights,
    *,
    up: PackedWeights | None = None,
    activation: Activation = Activation.SILU,
    inputs: InputPrecision = InputPrecision.INT8,
    arena: WeightArena | None = None,
) -> PackedLinear:
    """Pack quantized weights, or weights in float16, without loss.

    If `up` is given, with the same format and shape, `weights` is the gate. Inputs in int8 have a
    scale for each 32 of a row; a block of 32 with an outlier is the sum of two int8 blocks. Raises
    ConfigError for a format without a layout (see `layout_for`), and for numbers that the layout
    cannot represent.
    """
    layout, format = layout_for(weights.format), weights.format
    if layout is None or not isinstance(format, GGUFBlocks):
        raise ConfigError(f"weights of format {format.name} cannot be packed: dequantize them")
    if up is not None and up.format != format:
        raise ConfigError(f"gate has format {format.name} and up has {up.format.name}")
    _check_shapes(weights.shape, None if up is None else up.shape)
    kept = weights.planes[0].contiguous()
    kept_up = None if up is None else up.planes[0].contiguous()
    rows = WeightRowsStruct(
        rows=kept.data_ptr(),
        up_rows=None if kept_up is None else kept_up.data_ptr(),
        row_bytes=kept.shape[1],
        source=_SOURCES[format.kind][0],
    )
    struct = PackedLinearStruct(
        n=weights.shape[0],
        k=weights.shape[1],
        layout=layout,
        activation=activation,
        input_precision=inputs,
    )
    try:
        return _pack(struct, rows, arena)
    except ValueError as error:
        raise ConfigError(f"weights of format {format.name} have scales out of range") from error


def join(segments: Sequence[PackedLinear]) -> PackedLinear:
    """The product whose result is the results of all segments, side by side."""
    first, *others = segments
    for segment, following in zip(segments, others, strict=False):
        segment.struct.next = ctypes.addressof(following.struct)
    assert len({(one.in_features, one.gate_up) for one in segments}) == 1
    return replace(
        first,
        out_features=sum(one.out_features for one in segments),
        num_rows=sum(one.num_rows for one in segments),
        num_bytes=sum(one.num_bytes for one in segments),
        memory=tuple(segments),
    )


def linear(
    x: Tensor,
    packed: PackedLinear,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    add: bool = False,
) -> Tensor:
    """Multiply x [rows, in] by the weights and add the bias: [rows, out_features].

    The result has x's dtype, or goes to `out` (bfloat16 or float32) if that is given. With `add` it
    is added to the values in `out`. x is bfloat16, or float32 for weights in float32 or float16.
    Sums are float32. Raises ConfigError for shapes or dtypes that do not fit.
    """
    if out is None:
        if add:
            raise ConfigError("`add` needs a tensor to add to: give `out`")
        out = x.new_empty(x.shape[0], packed.out_features)
    if bias is not None:
        bias = bias.to(torch.float32).contiguous()
    call = make_linear_call(x, packed, bias, out, add=add)
    load_library().linear(ctypes.byref(call))
    return out


def make_linear_call(
    x: Tensor, packed: PackedLinear, bias: Tensor | None, out: Tensor, *, add: bool = False
) -> LinearCallStruct:
    """The structure of one product's call, with checked arguments.

    It holds only addresses: keep the tensors alive. Raises ConfigError for shapes, strides or
    dtypes that do not fit.
    """
    wanted = torch.float32 if packed.layout in _FLOAT_INPUTS else torch.bfloat16
    if x.dtype is not wanted or x.ndim != 2 or x.shape[1] != packed.in_features:
        raise ConfigError(
            f"inputs must be {wanted} [rows, {packed.in_features}], not {x.dtype} {tuple(x.shape)}"
        )
    if out.dtype not in _ELEMENTS or out.shape != (x.shape[0], packed.out_features):
        raise ConfigError(
            f"out must be bfloat16 or float32 [{x.shape[0]}, {packed.out_features}], "
            f"not {out.dtype} {tuple(out.shape)}"
        )
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ConfigError("the rows of inputs and out must be contiguous")
    if bias is not None and (
        bias.dtype is not torch.float32 or bias.shape != (packed.num_rows,) or bias.stride(0) != 1
    ):
        raise ConfigError(f"bias must be contiguous float32 [{packed.num_rows}]")
    return LinearCallStruct(
        weights=ctypes.pointer(packed.struct),
        x=x.data_ptr(),
        x_stride=x.stride(0),
        rows=x.shape[0],
        bias=None if bias is None else bias.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        out_type=_ELEMENTS[out.dtype],
        add_to_out=add,
    )


def _check_shapes(shape: tuple[int, ...], up_shape: tuple[int, ...] | None) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ConfigError(f"weights must be a matrix [out, in], not {tuple(shape)}")
    if shape[1] % 2:
        raise ConfigError(f"the number of inputs must be even, got {shape[1]}")
    if up_shape is not None and up_shape != shape:
        raise ConfigError(f"gate {tuple(shape)} and up {tuple(up_shape)} differ in shape")


def _pack(
    struct: PackedLinearStruct, rows: WeightRowsStruct, arena: WeightArena | None
) -> PackedLinear:
    """Pack `rows`. The structure has the rows of one matrix, even if it has gate and up."""
    library, rows_each = load_library(), int(struct.n)
    if rows.up_rows is not None:
        struct.gate_up, struct.n = True, 2 * rows_each
    num_bytes = library.packed_bytes(struct)
    struct.data, memory = (arena or WeightArena()).allocate(num_bytes)
    library.pack(struct, rows)
    return PackedLinear(
        layout=Layout(struct.layout),
        in_features=struct.k,
        out_features=rows_each,
        num_rows=struct.n,
        gate_up=bool(struct.gate_up),
        num_bytes=num_bytes,
        struct=struct,
        memory=memory,
    )
