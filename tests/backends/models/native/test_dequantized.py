"""Matrices that no backend keeps are dequantized in pieces."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.cpu.weights import random_blocks
from tokenmill.backends.models.native import dequantized as module
from tokenmill.backends.models.native.dequantized import dequantized


@pytest.mark.parametrize("num_rows", [1, 40, 41])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_have_the_numbers_of_the_whole(
    num_rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE", 8 * 64)
    blocks = random_blocks(Kind.Q4_1, num_rows, 64)
    assert torch.equal(dequantized(blocks, dtype), blocks.dequantize().to(dtype))
