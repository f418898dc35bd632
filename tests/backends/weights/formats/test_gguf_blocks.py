"""GGUF's block formats: the numbers of blocks that ggml's own code made."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors import safe_open

from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.packed import PackedWeights

from .sample_numbers import make_numbers

FILE = Path(__file__).with_name("gguf_blocks.safetensors")
with safe_open(FILE, framework="pt") as opened:
    DIGESTS = opened.metadata()
    BLOCKS = {name: opened.get_tensor(name) for name in DIGESTS}
ERRORS = {
    "Q4_0": 0.1,
    "Q4_1": 0.09,
    "Q5_0": 0.05,
    "Q5_1": 0.045,
    "Q8_0": 0.006,
    "Q2_K": 0.32,
    "Q3_K": 0.16,
    "Q4_K": 0.08,
    "Q5_K": 0.04,
    "Q6_K": 0.02,
    "IQ4_NL": 0.09,
    "IQ4_XS": 0.09,
    "MXFP4": 0.14,
}
"""Largest root-mean-square error, as a fraction of the numbers' root mean square."""


@pytest.mark.parametrize("name", ERRORS)
def test_blocks_of_ggml_have_ggml_s_numbers(name: str) -> None:
    numbers = torch.from_numpy(make_numbers())
    shape = (numbers.shape[0], numbers.shape[1])
    values = PackedWeights(GGUFBlocks(Kind[name]), shape, (BLOCKS[name],)).dequantize()
    assert hashlib.sha256(values.numpy().tobytes()).hexdigest() == DIGESTS[name]
    assert float((values - numbers).norm() / numbers.norm()) < ERRORS[name]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
def test_floating_point_types_are_formats_too(kind: Kind) -> None:
    dtype = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}[kind]
    numbers = torch.from_numpy(make_numbers()).to(dtype)
    blocks = numbers.view(torch.uint8)
    weights = PackedWeights(GGUFBlocks(kind), (4, 256), (blocks,))
    assert np.array_equal(weights.dequantize().numpy(), numbers.float().numpy())
