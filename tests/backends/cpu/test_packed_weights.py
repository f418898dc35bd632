"""Products with packed weights, against float64 of the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from tokenmill.backends.cpu.library import Library
from tokenmill.backends.cpu.packed_weights import WeightArena, linear, pack_gguf, pack_linear
from tokenmill.backends.weights.formats.gguf_blocks import gguf_weights
from tokenmill.core.errors import ConfigError

from .weights import FORMATS, error_bound, make_weights

BF16_ROUNDING = 2.0**-8
"""Half a unit in the last of eight significant bits."""
ROWS = (1, 2, 3, 7, 8, 16, 33, 64, 200)

pytestmark = pytest.mark.usefixtures("library")


def _make_inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=generator).to(dtype)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("out", "inputs"), [(64, 576), (70, 96), (31, 32), (100, 1536)])
def test_a_product_is_within_float32_rounding(format: str, out: int, inputs: int) -> None:
    weights = make_weights(format, out, inputs)
    for rows in ROWS:
        x = _make_inputs(rows, inputs, weights.x_dtype)
        result = linear(x, weights.packed, out=torch.empty(rows, out))
        error = (result - x.double() @ weights.exact.T).abs()
        assert (error <= error_bound(x, weights)).all(), rows


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", FORMATS[1:])
def test_a_bfloat16_result_is_rounded_once(format: str) -> None:
    weights = make_weights(format, 70, 96)
    x = _make_inputs(9, 96, torch.bfloat16)
    exact = x.double() @ weights.exact.T
    result = linear(x, weights.packed)
    assert result.dtype is torch.bfloat16
    bound = error_bound(x, weights) * (1 + BF16_ROUNDING) + exact.abs() * BF16_ROUNDING
    assert ((result - exact).abs() <= bound).all()


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ["float32", "bfloat16"])
@pytest.mark.parametrize("inputs", [2, 6, 34, 50, 1022])
def test_an_even_number_of_inputs_is_enough_for_floats(format: str, inputs: int) -> None:
    weights = make_weights(format, 37, inputs)
    for rows in (1, 5, 30):
        x = _make_inputs(rows, inputs, weights.x_dtype)
        result = linear(x, weights.packed, out=torch.empty(rows, 37))
        error = (result - x.double() @ weights.exact.T).abs()
        assert (error <= error_bound(x, weights)).all(), rows


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ["bfloat16", "Q4_1"])
def test_long_panels_in_pieces_and_rows_that_alias_in_the_cache(format: str) -> None:
    weights = make_weights(format, 40, 8192)
    for rows in (1, 6, 600):
        x = _make_inputs(rows, 8192, torch.bfloat16)
        result = linear(x, weights.packed, out=torch.empty(rows, 40))
        error = (result - x.double() @ weights.exact.T).abs()
        assert (error <= error_bound(x, weights)).all(), rows


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("out", [48, 23])
def test_gate_and_up_give_their_swiglu(format: str, out: int) -> None:
    weights = make_weights(format, out, 64, up=True)
    for rows in (1, 8, 33):
        x = _make_inputs(rows, 64, weights.x_dtype)
        gate, up = (x.double() @ weights.exact.T).split(out, dim=1)
        gate_bound, up_bound = error_bound(x, weights).split(out, dim=1)
        silu = torch.nn.functional.silu(gate)
        result = linear(x, weights.packed, out=torch.empty(rows, out))
        # The slope of SiLU is below 1.1; its exponential is good to 2^-21.
        bound = 1.1 * gate_bound * (up.abs() + up_bound) + silu.abs() * up_bound
        bound += (silu * up).abs() * 2.0**-20
        assert ((result - silu * up).abs() <= bound).all(), rows


@pytest.mark.usefixtures("instruction_set")
def test_silu_of_large_gates_is_finite() -> None:
    packed = pack_linear(torch.full((16, 2), 100.0), up=torch.full((16, 2), 1.0))
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.bfloat16)
    result = linear(x, packed, out=torch.empty(2, 16))
    torch.testing.assert_close(result[0], torch.full((16,), 400.0))
    torch.testing.assert_close(result[1], torch.zeros(16))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_and_residual_are_added_before_the_rounding(dtype: torch.dtype) -> None:
    weights = make_weights("bfloat16", 45, 64)
    x = _make_inputs(5, 64, torch.bfloat16)
    bias = torch.randn(45)
    residual = torch.randn(5, 45).to(dtype)
    exact = x.double() @ weights.exact.T + bias + residual.double()
    result = linear(x, weights.packed, bias, residual.clone(), add=True)
    bound = error_bound(x, weights) * 1.1 + 2.0**-22 * (bias.abs() + residual.abs())
    if dtype is torch.bfloat16:
        bound = bound * (1 + BF16_ROUNDING) + exact.abs() * BF16_ROUNDING
    assert ((result - exact).abs() <= bound).all()


@pytest.mark.usefixtures("instruction_set")
def test_strided_rows_are_read_and_nothing_beside_out_is_written() -> None:
    weights = make_weights("bfloat16", 45, 64)
    x = _make_inputs(20, 200, torch.bfloat16)[:, 50:114]
    around = torch.full((20, 100), 7.0)
    linear(x, weights.packed, out=around[:, 20:65])
    error = (around[:, 20:65] - x.double() @ weights.exact.T).abs()
    assert (error <= error_bound(x, weights)).all()
    assert (around[:, :20] == 7).all() and (around[:, 65:] == 7).all()


@pytest.mark.usefixtures("instruction_set", "restore_threads")
@pytest.mark.parametrize("threads", [1, 2, 3, 6])
def test_threads_do_not_change_a_result(library: Library, threads: int) -> None:
    weights = make_weights("bfloat16", 70, 96)
    x = _make_inputs(50, 96, torch.bfloat16)
    before = linear(x, weights.packed)
    library.set_threads(threads)
    assert torch.equal(linear(x, weights.packed), before)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ["bfloat16", "Q4_1"])
def test_a_row_is_the_same_to_the_last_bit_alone_and_among_others(format: str) -> None:
    weights = make_weights(format, 70, 96)
    x = _make_inputs(50, 96, torch.bfloat16)
    together = linear(x, weights.packed)
    for row in range(50):
        assert torch.equal(linear(x[row : row + 1], weights.packed)[0], together[row])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("up", [False, True])
def test_packing_loses_nothing(format: str, up: bool) -> None:
    weights = make_weights(format, 70, 96, up=up)
    assert torch.equal(weights.packed.dequantize().double(), weights.exact)


def test_four_bits_stay_four_bits() -> None:
    assert make_weights("Q4_0", 64, 64).packed.num_bytes == 64 * 2 * 18
    assert make_weights("Q4_1", 64, 64).packed.num_bytes == 64 * 2 * 20
    assert make_weights("Q8_0", 64, 64).packed.num_bytes == 64 * 2 * 34


def test_every_eight_bit_value_and_subnormal_scales_are_exact() -> None:
    raw = np.zeros((3, 8, 34), np.uint8)
    raw[:, :, 2:] = np.arange(256, dtype=np.uint8).reshape(8, 32)
    raw[:, :, :2] = np.array([1.0, 6e-8, -65504.0], np.float16).view(np.uint8).reshape(3, 1, 2)
    rows = torch.from_numpy(raw.reshape(3, -1))
    packed = pack_gguf(gguf_weights(GGMLQuantizationType.Q8_0, rows))
    scales = torch.tensor([1.0, 2.0**-24, -65504.0])
    values = torch.arange(256).to(torch.int8).float()
    assert torch.equal(packed.dequantize(), scales[:, None] * values)
    x = torch.zeros(256, 256, dtype=torch.bfloat16).fill_diagonal_(1)
    assert torch.equal(linear(x, packed, out=torch.empty(256, 3)), packed.dequantize().T)


def test_matrices_of_an_arena_lie_side_by_side() -> None:
    arena = WeightArena()
    first, second = (pack_linear(torch.randn(64, 64), arena=arena) for _ in range(2))
    assert first.memory is second.memory
    assert second.struct.data - first.struct.data == 64 * 64 * 2
    del arena
    assert linear(torch.ones(1, 64, dtype=torch.bfloat16), second).isfinite().all()


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be even, got 3"):
        pack_linear(torch.zeros(4, 3))
    with pytest.raises(ConfigError, match=r"must be a matrix \[out, in\], not \(4,\)"):
        pack_linear(torch.zeros(4))
    with pytest.raises(ConfigError, match=r"gate \(4, 2\) and up \(5, 2\) differ"):
        pack_linear(torch.zeros(4, 2), up=torch.zeros(5, 2))
    with pytest.raises(ConfigError, match=r"torch.int64 cannot be packed as torch.bfloat16"):
        pack_linear(torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="Q6_K cannot be packed; only Q4_0, Q4_1, Q8_0 can"):
        pack_gguf(gguf_weights(GGMLQuantizationType.Q6_K, torch.zeros(4, 210, dtype=torch.uint8)))


def test_inputs_that_do_not_fit_are_refused() -> None:
    packed = pack_linear(torch.zeros(4, 8))
    x = torch.zeros(3, 8, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match=r"torch.bfloat16 \[rows, 8\], not torch.float32 \(3, 8"):
        linear(x.float(), packed)
    with pytest.raises(ConfigError, match=r"\[rows, 8\], not torch.bfloat16 \(3, 6\)"):
        linear(x[:, :6], packed)
    with pytest.raises(ConfigError, match=r"out must be bfloat16 or float32 \[3, 4\]"):
        linear(x, packed, out=torch.zeros(3, 5))
    with pytest.raises(ConfigError, match="rows of inputs and out must be contiguous"):
        linear(torch.zeros(8, 3, dtype=torch.bfloat16).T, packed)
    with pytest.raises(ConfigError, match=r"bias must be contiguous float32 \[4\]"):
        linear(x, packed, torch.zeros(5))
    with pytest.raises(ConfigError, match="needs a tensor to add to"):
        linear(x, packed, add=True)
