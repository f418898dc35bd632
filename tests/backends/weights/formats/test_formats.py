"""Every packed format: its numbers, cuts and stacks, and planes that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.backends.weights.formats.bits import pack_nibbles
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.formats.grouped_ints import grouped_ints
from tokenmill.backends.weights.formats.scaled_fp8 import scaled_fp8
from tokenmill.backends.weights.packed import PackedWeights, stack
from tokenmill.core.errors import ConfigError

Make = Callable[[int, int, int], PackedWeights]
"""Makes random weights from the number of outputs, of inputs, and a seed."""
KINDS = [
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
]
CHECKED = settings(max_examples=12, deadline=None)


def gguf(kind: str) -> Make:
    format = GGUFBlocks(GGMLQuantizationType[kind])

    def make(num_outputs: int, num_inputs: int, seed: int) -> PackedWeights:
        shape = (num_outputs, format.row_bytes(num_inputs))
        # Below 96 the high byte of a scale is not that of an infinity.
        blocks = np.random.default_rng(seed).integers(0, 96, shape, dtype=np.uint8)
        return PackedWeights(format, (num_outputs, num_inputs), (torch.from_numpy(blocks),))

    return make


def integers(
    bits: int,
    group_size: int | None,
    *,
    has_zeros: bool = False,
    is_ordered: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Make:
    def make(num_outputs: int, num_inputs: int, seed: int) -> PackedWeights:
        draw = torch.Generator().manual_seed(seed)
        groups = num_inputs // group_size if group_size else 1
        q = torch.randint(0, 2**bits, (num_outputs, num_inputs), generator=draw)
        zeros = torch.randint(0, 2**bits, (num_outputs, groups), generator=draw)
        # The order depends on the number of inputs only, so that matrices can be stacked.
        order = torch.randperm(num_inputs, generator=torch.Generator().manual_seed(num_inputs))
        return grouped_ints(
            (num_outputs, num_inputs),
            bits=bits,
            group_size=group_size,
            integers=pack_nibbles(q.to(torch.uint8)) if bits == 4 else q.to(torch.uint8),
            scales=torch.rand(num_outputs, groups, generator=draw).to(dtype),
            zeros=zeros.to(torch.uint8) if has_zeros else None,
            group_of=(order // (num_inputs // groups)).int() if is_ordered else None,
        )

    return make


def fp8(block: tuple[int, int], dtype: torch.dtype = torch.float32) -> Make:
    def make(num_outputs: int, num_inputs: int, seed: int) -> PackedWeights:
        draw = torch.Generator().manual_seed(seed)
        rows, columns = block[0] or num_outputs, block[1] or num_inputs
        shape = (-(-num_outputs // rows), -(-num_inputs // columns))
        weights = torch.randn(num_outputs, num_inputs, generator=draw).to(torch.float8_e4m3fn)
        return scaled_fp8(weights, torch.rand(shape, generator=draw).to(dtype), (rows, columns))

    return make


FORMATS: dict[str, Make] = {kind: gguf(kind) for kind in KINDS} | {
    "int4": integers(4, 32),
    "int4, zeros": integers(4, 32, has_zeros=True),
    "int4, ordered": integers(4, 32, is_ordered=True),
    "int4, ordered, zeros": integers(4, 64, is_ordered=True, has_zeros=True),
    "int4, rows": integers(4, None, dtype=torch.bfloat16),
    "int8": integers(8, 128, has_zeros=True, dtype=torch.float32),
    "int8, ordered": integers(8, 32, is_ordered=True),
    "int8, rows": integers(8, None),
    "fp8, blocks": fp8((128, 128)),
    "fp8, rows": fp8((1, 0), torch.bfloat16),
    "fp8, one scale": fp8((0, 0)),
}


@pytest.mark.parametrize("name", FORMATS)
@CHECKED
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_cutting_commutes_with_dequantizing(name: str, data: st.DataObject, seed: int) -> None:
    weights = FORMATS[name](data.draw(st.integers(1, 9)), 512, seed)
    for dim, block in ((0, 1), (1, weights.format.block_size)):
        size = weights.shape[dim] // block
        start = data.draw(st.integers(0, size - 1))
        length = data.draw(st.integers(1, size - start))
        part = weights.narrow(dim, start * block, length * block)
        expected = weights.dequantize().narrow(dim, start * block, length * block)
        assert part.shape == tuple(expected.shape)
        assert equal(part.dequantize(), expected)


@pytest.mark.parametrize("name", FORMATS)
@CHECKED
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_stacking_commutes_with_dequantizing(name: str, sizes: list[int], seed: int) -> None:
    parts = [FORMATS[name](size, 512, seed + i) for i, size in enumerate(sizes)]
    stacked = stack(parts)
    assert stacked.format == parts[0].format
    assert equal(stacked.dequantize(), torch.cat([part.dequantize() for part in parts]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_can_be_cut_and_stacked_again(name: str) -> None:
    weights = FORMATS[name](6, 512, 1)
    again = stack([weights.narrow(0, 0, 2), weights.narrow(0, 2, 4)])
    assert again.format == weights.format
    for ours, expected in zip(again.planes, weights.planes, strict=True):
        assert torch.equal(ours.view(torch.uint8), expected.contiguous().view(torch.uint8))


@pytest.mark.parametrize("name", FORMATS)
def test_planes_that_do_not_fit_are_refused(name: str) -> None:
    weights = FORMATS[name](6, 512, 1)
    shape, planes = weights.shape, weights.planes
    damaged: list[Sequence[torch.Tensor]] = [planes[:-1], (*planes, planes[0])]
    for place, plane in enumerate(planes):
        before, after = planes[:place], planes[place + 1 :]
        damaged += [
            (*before, plane[:-1], *after),
            (*before, plane[..., :0], *after),
            (*before, plane.float().to(torch.int64), *after),
            (*before, plane.unsqueeze(0), *after),
        ]
    for wrong in damaged:
        with pytest.raises(ConfigError):
            PackedWeights(weights.format, shape, tuple(wrong))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_not_cut_inside_a_block(name: str) -> None:
    weights = FORMATS[name](2, 512, 1)
    block = weights.format.block_size
    if block == 1:
        assert weights.narrow(1, 1, 3).shape == (2, 3)
        return
    with pytest.raises(ConfigError, match=f"only at multiples of {block} inputs"):
        weights.narrow(1, block - 1, block)


def test_matrices_of_different_orders_are_of_different_formats() -> None:
    first, second = FORMATS["int4, ordered"](2, 512, 1), FORMATS["int4, ordered"](2, 512, 2)
    assert first.format == second.format
    planes = (*first.planes[:2], first.planes[2].flip(0))
    with pytest.raises(ConfigError, match="does not have the order of groups of its format"):
        PackedWeights(first.format, first.shape, planes)


def test_an_order_of_another_number_of_groups_is_of_another_format() -> None:
    """They have the same inputs in each group, but planes of different widths."""

    def make(groups: int) -> PackedWeights:
        return grouped_ints(
            (3, 32),
            bits=4,
            group_size=16,
            integers=torch.zeros(3, 16, dtype=torch.uint8),
            scales=torch.ones(3, groups),
            group_of=torch.arange(32, dtype=torch.int32) % 2,
        )

    assert make(2).format == make(2).format != make(4).format
    assert make(4).narrow(1, 2, 30).narrow(0, 1, 2).shape == (2, 30)


@dataclass(frozen=True)
class Plain:
    """What a maker of grouped integers should leave out."""

    changes: dict[str, Any]
    num_planes: int
    group_size: int | None


SIMPLIFIED = {
    "zero points that are those of symmetric weights": Plain({"zeros": 8}, 2, 16),
    "other zero points": Plain({"zeros": 7}, 3, 16),
    "an order that is none": Plain({"group_of": [i // 16 for i in range(32)]}, 2, 16),
    "an order": Plain({"group_of": [i % 2 for i in range(32)]}, 3, None),
    "a group as long as a row": Plain({"group_size": 64, "groups": 1}, 2, None),
}


@pytest.mark.parametrize("case", SIMPLIFIED)
def test_planes_that_say_nothing_are_left_out(case: str) -> None:
    expected = SIMPLIFIED[case]
    changes = dict(expected.changes)
    groups = changes.pop("groups", 2)
    options: dict[str, Any] = {"group_size": 16} | changes
    if "zeros" in options:
        options["zeros"] = torch.full((3, groups), options["zeros"], dtype=torch.uint8)
    if "group_of" in options:
        options["group_of"] = torch.tensor(options["group_of"], dtype=torch.int32)
    weights = grouped_ints(
        (3, 32),
        bits=4,
        integers=torch.zeros(3, 16, dtype=torch.uint8),
        scales=torch.ones(3, groups),
        **options,
    )
    assert len(weights.planes) == expected.num_planes
    assert getattr(weights.format, "group_size", 0) == expected.group_size


def test_scales_of_two_types_are_stacked_without_a_loss() -> None:
    first = integers(4, 32, dtype=torch.float16)(2, 64, 1)
    second = integers(4, 32, dtype=torch.bfloat16)(2, 64, 2)
    expected = torch.cat([first.dequantize(), second.dequantize()])
    assert torch.equal(stack([first, second]).dequantize(), expected)


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Also where numbers are not finite: random blocks can hold such scales."""
    return np.array_equal(first.numpy(), second.numpy(), equal_nan=True)
