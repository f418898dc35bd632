"""Products with packed weights, against float64 of the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from tokenmill.backends.cpu.native.library import InputPrecision, Library
from tokenmill.backends.cpu.packed_weights import (
    WeightArena,
    join,
    layout_for,
    linear,
    pack_linear,
    pack_weights,
)
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks, gguf_weights
from tokenmill.core.errors import ConfigError

from .weights import (
    FLOATS,
    FORMATS,
    HALVES,
    ONE_OF_EACH_LAYOUT,
    make_weights,
    random_blocks,
    round_to_int8,
)

BF16_ROUNDING = 2.0**-8
"""Half a unit in the last of eight significant bits."""
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 33, 200)

pytestmark = pytest.mark.usefixtures("library")


def _make_inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Every third row has a number that is much larger than others."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator)
    x[::3, columns // 2] = 100
    return x.to(dtype)


def _inputs_of(format: str, inputs: int) -> int:
    """A number of inputs near that one, of whole blocks."""
    per_block = 1 if format in FLOATS else GGUFBlocks(GGMLQuantizationType[format]).block_size
    return -(-inputs // per_block) * per_block


def _assert_near(found: Tensor, exact: Tensor, bound: Tensor, what: object = None) -> None:
    assert ((found - exact).abs() <= bound).all(), what


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ONE_OF_EACH_LAYOUT)
@pytest.mark.parametrize("precision", InputPrecision)
def test_a_product_is_within_float32_rounding(format: str, precision: InputPrecision) -> None:
    for out, inputs in ((64, 576), (31, 32)):
        inputs = _inputs_of(format, inputs)
        weights = make_weights(format, out, inputs, precision=precision)
        for rows in ROWS:
            x = _make_inputs(rows, inputs, weights.x_dtype)
            result = linear(x, weights.packed, out=torch.empty(rows, out))
            _assert_near(result, weights.product(x), weights.error_bound(x), (out, rows))


@pytest.mark.usefixtures("instruction_set")
def test_inputs_are_rounded_to_int8_by_blocks_of_32() -> None:
    """The identity gives what a product makes of its inputs."""
    raw = np.zeros((64, 2, 34), np.uint8)
    raw[:, :, :2] = np.array([1.0], np.float16).view(np.uint8)
    raw[np.arange(64), np.arange(64) // 32, 2 + np.arange(64) % 32] = 1
    packed = pack_weights(
        gguf_weights(GGMLQuantizationType.Q8_0, torch.from_numpy(raw).view(64, 68))
    )
    x = _make_inputs(3, 64, torch.bfloat16)
    x[1, :32] *= 1e-20
    x[2, :32] = 0
    found = linear(x, packed, out=torch.empty(3, 64))
    torch.testing.assert_close(found.double(), round_to_int8(x), rtol=1e-6, atol=0)
    error = (found - x).abs().view(3, 2, 32).amax(dim=2)
    assert (error <= x.float().abs().view(3, 2, 32).amax(dim=2) / 253).all()


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ["Q4_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_input_that_is_not_finite_spoils_its_row_only(format: str, value: float) -> None:
    weights = make_weights(format, 40, 256)
    x = _make_inputs(3, 256, torch.bfloat16)
    before = linear(x, weights.packed)
    x[1, 77] = value
    after = linear(x, weights.packed)
    assert not after[1].isfinite().any()
    assert torch.equal(after[0], before[0]) and torch.equal(after[2], before[2])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ["bfloat16", "Q4_1", "Q8_0"])
def test_a_bfloat16_result_is_rounded_once(format: str) -> None:
    weights = make_weights(format, 70, 96)
    x = _make_inputs(9, 96, torch.bfloat16)
    exact = weights.product(x)
    result = linear(x, weights.packed)
    assert result.dtype is torch.bfloat16
    bound = weights.error_bound(x) * (1 + BF16_ROUNDING) + exact.abs() * BF16_ROUNDING
    assert ((result - exact).abs() <= bound).all()


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize("inputs", [2, 6, 34, 50, 1022])
def test_an_even_number_of_inputs_is_enough_for_floats(format: str, inputs: int) -> None:
    weights = make_weights(format, 37, inputs)
    for rows in (1, 5, 30):
        x = _make_inputs(rows, inputs, weights.x_dtype)
        result = linear(x, weights.packed, out=torch.empty(rows, 37))
        error = (result - weights.product(x)).abs()
        assert (error <= weights.error_bound(x)).all(), rows


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ["bfloat16", "float16", "Q4_1", "Q6_K"])
def test_long_panels_in_pieces_and_rows_that_alias_in_the_cache(format: str) -> None:
    weights = make_weights(format, 40, 8192)
    for rows in (1, 6, 600):
        x = _make_inputs(rows, 8192, weights.x_dtype)
        result = linear(x, weights.packed, out=torch.empty(rows, 40))
        error = (result - weights.product(x)).abs()
        assert (error <= weights.error_bound(x)).all(), rows


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ONE_OF_EACH_LAYOUT)
@pytest.mark.parametrize("out", [48, 23])
def test_gate_and_up_give_their_swiglu(format: str, out: int) -> None:
    inputs = _inputs_of(format, 64)
    weights = make_weights(format, out, inputs, up=True)
    for rows in (1, 8, 33):
        x = _make_inputs(rows, inputs, weights.x_dtype)
        gate, up = (weights.product(x)).split(out, dim=1)
        gate_bound, up_bound = weights.error_bound(x).split(out, dim=1)
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
    exact = weights.product(x) + bias + residual.double()
    result = linear(x, weights.packed, bias, residual.clone(), add=True)
    bound = weights.error_bound(x) * 1.1 + 2.0**-22 * (bias.abs() + residual.abs())
    if dtype is torch.bfloat16:
        bound = bound * (1 + BF16_ROUNDING) + exact.abs() * BF16_ROUNDING
    assert ((result - exact).abs() <= bound).all()


@pytest.mark.usefixtures("instruction_set")
def test_strided_rows_are_read_and_nothing_beside_out_is_written() -> None:
    weights = make_weights("bfloat16", 45, 64)
    x = _make_inputs(20, 200, torch.bfloat16)[:, 50:114]
    around = torch.full((20, 100), 7.0)
    linear(x, weights.packed, out=around[:, 20:65])
    error = (around[:, 20:65] - weights.product(x)).abs()
    assert (error <= weights.error_bound(x)).all()
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
@pytest.mark.parametrize("format", ONE_OF_EACH_LAYOUT[1:])
@pytest.mark.parametrize("precision", InputPrecision)
def test_a_row_is_the_same_to_the_last_bit_alone_and_among_others(
    format: str, precision: InputPrecision
) -> None:
    inputs = _inputs_of(format, 96)
    weights = make_weights(format, 70, inputs, precision=precision)
    x = _make_inputs(50, inputs, weights.x_dtype)
    together = linear(x, weights.packed)
    for row in range(50):
        assert torch.equal(linear(x[row : row + 1], weights.packed)[0], together[row])


@pytest.mark.parametrize("format", ["Q4_1", "Q8_0"])
def test_an_outlier_costs_the_inputs_beside_it_no_precision(format: str) -> None:
    weights = make_weights(format, 64, 576)
    x = _make_inputs(1, 576, torch.bfloat16)
    x[0, 300] = 100
    exact = x.double() @ weights.exact.T
    error = linear(x, weights.packed, out=torch.empty(1, 64)) - exact
    # As if every block had its own step of at most 4 / 127; the outlier's would be 100 / 127.
    allowed = 2 * 4 / 127 * 12**-0.5 * weights.exact.norm(dim=1).max()
    assert error.pow(2).mean().sqrt() < allowed


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("up", [False, True])
def test_packing_loses_nothing(format: str, up: bool) -> None:
    weights = make_weights(format, 70, _inputs_of(format, 96), up=up)
    assert torch.equal(weights.packed.dequantize().double(), weights.exact)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_are_looked_up_are_exact_or_the_nearest_bfloat16(format: str) -> None:
    weights = make_weights(format, 70, _inputs_of(format, 96))
    rows = torch.tensor([69, 0, 31, 32, 31])
    exact = weights.exact[rows].float()
    assert torch.equal(weights.packed.look_up(rows, torch.float32), exact)
    assert torch.equal(weights.packed.look_up(rows), exact.to(torch.bfloat16))
    assert weights.packed.look_up(rows[:0]).shape == (0, exact.shape[1])


def test_a_block_that_is_not_a_number_stays_that() -> None:
    blocks = random_blocks(GGMLQuantizationType.Q8_0, 2, 64)
    blocks.planes[0][0, :2] = torch.tensor([0xFF, 0xFF], dtype=torch.uint8)
    found = pack_weights(blocks).look_up(torch.arange(2))
    assert found[0, :32].isnan().all()
    assert torch.equal(found.isnan(), blocks.dequantize().isnan())


@pytest.mark.parametrize(
    ("format", "block_bytes"),
    [
        ("Q4_0", 20), ("Q4_1", 20), ("Q5_0", 24), ("Q5_1", 24), ("Q8_0", 34), ("IQ4_NL", 18),
        ("IQ4_XS", 138), ("MXFP4", 18), ("Q2_K", 84), ("Q3_K", 114), ("Q4_K", 148),
        ("Q5_K", 180), ("Q6_K", 210),
    ],
)  # fmt: skip
def test_packed_weights_are_nearly_as_small_as_in_the_file(format: str, block_bytes: int) -> None:
    per_block = GGUFBlocks(GGMLQuantizationType[format]).block_size
    assert make_weights(format, 64, 512).packed.num_bytes == 64 * 512 // per_block * block_bytes


@pytest.mark.parametrize("format", ["Q4_0", "Q5_0"])
def test_scales_of_any_size_are_exact(format: str) -> None:
    kind, halves = GGMLQuantizationType[format], np.arange(65536, dtype=np.uint16)
    zero = {"Q4_0": 8, "Q5_0": 16}[format]
    finite = halves[np.abs(halves.view(np.float16)) <= 65504 / zero]
    blocks = random_blocks(kind, len(finite), 32)
    blocks.planes[0][:, :2] = torch.from_numpy(finite.view(np.uint8).reshape(-1, 2).copy())
    assert torch.equal(pack_weights(blocks).dequantize(), blocks.dequantize())


@pytest.mark.parametrize("format", ["Q4_0", "Q5_0"])
def test_scales_that_no_layout_has_are_refused(format: str) -> None:
    blocks = random_blocks(GGMLQuantizationType[format], 3, 64)
    blocks.planes[0][1, :2] = 0x7B  # 61,280 in half precision
    with pytest.raises(ConfigError, match=f"weights of format {format} have scales out of range"):
        pack_weights(blocks)


@pytest.mark.parametrize(
    "kind", [one for one in GGMLQuantizationType if one.name not in {*HALVES, "F16"}]
)
def test_other_formats_have_no_layout(kind: GGMLQuantizationType) -> None:
    assert layout_for(GGUFBlocks(kind)) is None


def test_every_power_of_two_is_exact_in_mxfp4() -> None:
    """Products with the largest ones would overflow, as sums of such weights would, too."""
    blocks = random_blocks(GGMLQuantizationType.MXFP4, 256, 32)
    blocks.planes[0][:, 0] = torch.arange(256)
    blocks.planes[0][:, 1] = 0x01  # 0.5
    packed = pack_weights(blocks)
    assert torch.equal(packed.dequantize(), blocks.dequantize())
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 0] = 1
    found = linear(x, packed, out=torch.empty(1, 256))[0, :240]
    torch.testing.assert_close(found, blocks.dequantize()[:240, 0], rtol=1e-6, atol=0)


def test_every_eight_bit_value_and_subnormal_scales_are_exact() -> None:
    raw = np.zeros((3, 8, 34), np.uint8)
    raw[:, :, 2:] = np.arange(256, dtype=np.uint8).reshape(8, 32)
    raw[:, :, :2] = np.array([1.0, 6e-8, -65504.0], np.float16).view(np.uint8).reshape(3, 1, 2)
    rows = torch.from_numpy(raw.reshape(3, -1))
    blocks = gguf_weights(GGMLQuantizationType.Q8_0, rows)
    packed = pack_weights(blocks, inputs=InputPrecision.FLOAT)
    scales = torch.tensor([1.0, 2.0**-24, -65504.0])
    values = torch.arange(256).to(torch.int8).float()
    assert torch.equal(packed.dequantize(), scales[:, None] * values)
    x = torch.zeros(256, 256, dtype=torch.bfloat16).fill_diagonal_(1)
    assert torch.equal(linear(x, packed, out=torch.empty(256, 3)), packed.dequantize().T)
    rounded = linear(x, pack_weights(blocks), out=torch.empty(256, 3))
    torch.testing.assert_close(rounded, packed.dequantize().T, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("instruction_set")
def test_every_number_of_16_bits_is_exact() -> None:
    """Also as the kernels convert it, subnormal numbers included."""
    halves = torch.arange(1 << 16).to(torch.int16).view(torch.float16)
    values = halves[halves.isfinite()].view(-1, 2)
    packed = pack_weights(gguf_weights(GGMLQuantizationType.F16, values.view(torch.uint8)))
    assert torch.equal(packed.dequantize(), values.float())
    for rows in (2, 40):
        x = torch.eye(2).repeat(rows // 2, 1)
        assert torch.equal(linear(x, packed)[-2:], values.float().T)


@pytest.mark.usefixtures("instruction_set")
def test_segments_of_different_layouts_give_results_side_by_side() -> None:
    weights = [
        make_weights(one, out, 256)
        for one, out in zip(("Q4_K", "Q8_0", "bfloat16", "Q6_K"), (96, 32, 7, 70), strict=True)
    ]
    joined = join([one.packed for one in weights])
    assert joined.out_features == 96 + 32 + 7 + 70
    bias = torch.randn(joined.out_features)
    for rows in (1, 9):
        x = _make_inputs(rows, 256, torch.bfloat16)
        result = linear(x, joined, bias, torch.empty(rows, joined.out_features))
        exact = torch.cat([one.product(x) for one in weights], dim=1) + bias
        bound = torch.cat([one.error_bound(x) for one in weights], dim=1) + 2.0**-22
        _assert_near(result, exact, bound)


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
    iq3_s = gguf_weights(GGMLQuantizationType.IQ3_S, torch.zeros(4, 110, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="format IQ3_S cannot be packed: dequantize them"):
        pack_weights(iq3_s)
    gate, up = (random_blocks(GGMLQuantizationType[one], 4, 32) for one in ("Q4_0", "Q8_0"))
    with pytest.raises(ConfigError, match="gate has format Q4_0 and up has Q8_0"):
        pack_weights(gate, up=up)


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
