"""The CPU backend keeps integers with scales, as GGUF's blocks, where those have the numbers."""

from __future__ import annotations

import pytest
import torch

from tests.backends.weights.formats.test_formats import integers
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.weights.packed import PackedWeights

SPEC = LinearSpec(dtype=torch.bfloat16, device=torch.device("cpu"))
BITS = {"symmetric": integers(4, 64), "int8": integers(8, 32)}
WIDE = integers(4, 64, dtype=torch.float32)
"""Its scales are random numbers, which float16 does not have."""


def check_products(weights: PackedWeights, up: PackedWeights) -> int:
    """Compare products with those of the dequantized matrices; return the bytes of one matrix.

    Kernels may round inputs to int8: that is wrong by about 0.7 % of a row's norm, rarely by 3 %.
    """
    backend = CPULinear(SPEC)
    x = torch.randn(3, weights.shape[1], generator=torch.Generator().manual_seed(3))
    x = x.to(torch.bfloat16)
    dense, dense_up = weights.dequantize(), up.dequantize()
    linear = backend.linear([weights], None)
    torch.testing.assert_close(
        linear(x).float(), x.float() @ dense.t(), rtol=0.02, atol=0.05 * dense.norm(dim=1).max()
    )
    head = backend.head(weights)
    torch.testing.assert_close(
        head(x), x.float() @ dense.t(), rtol=0.02, atol=0.05 * dense.norm(dim=1).max()
    )
    gated = backend.gate_up(weights, up, None, "silu")(x).float()
    expected = torch.nn.functional.silu(x.float() @ dense.t()) * (x.float() @ dense_up.t())
    torch.testing.assert_close(gated, expected, rtol=0.02, atol=0.05 * expected.abs().max())
    return linear.num_bytes


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", BITS)
def test_products_are_those_of_the_dequantized_matrix(case: str) -> None:
    weights, up = BITS[case](64, 256, 1), BITS[case](64, 256, 2)
    num_bytes = check_products(weights, up)
    assert num_bytes < 1.2 * 64 * 256  # bfloat16 takes 2.0


@pytest.mark.usefixtures("library")
def test_a_matrix_that_blocks_do_not_fill_is_computed_in_bfloat16() -> None:
    rows = integers(4, None)
    num_bytes = check_products(rows(64, 240, 1), rows(64, 240, 2))
    assert num_bytes >= 2 * 64 * 240


@pytest.mark.usefixtures("library")
def test_formats_are_kept_if_their_blocks_are() -> None:
    formats = [BITS[case](2, 256, 1).format for case in BITS]
    ordered = integers(4, 32, is_ordered=True)(2, 256, 1).format
    kept = CPULinear.keeps(SPEC, formats[0])
    assert [CPULinear.keeps(SPEC, format) for format in formats] == [kept, kept]
    for other in (ordered, WIDE(2, 256, 1).format):
        assert not CPULinear.keeps(SPEC, other)
