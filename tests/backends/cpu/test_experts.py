"""Experts by native products: each has a matrix of its own, packed as in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.oracle.architectures import MODELS
from tokenmill.backends.cpu.library import Library
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.models.loader import load_decoder
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.interfaces import no_progress

from ..models.dense import compute_logits
from ..weights.gguf_converting import convert_to_gguf

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0])
def test_experts_of_a_gguf_file_stay_packed(kind: Kind, library: Library, tmp_path: Path) -> None:
    MODELS["qwen3-moe"].make().save_pretrained(tmp_path / "model")
    path = convert_to_gguf(tmp_path / "model", tmp_path / "model.gguf", kind)
    checkpoint, token_ids = open_checkpoint(path), torch.arange(24) * 7
    packed = load_decoder(
        checkpoint,
        dtype=torch.bfloat16,
        device=CPU,
        progress=no_progress,
        linear=CPULinear(LinearSpec(dtype=torch.bfloat16, device=CPU)),
    )
    plain = load_decoder(checkpoint, dtype=torch.float32, device=CPU, progress=no_progress)
    bits = {Kind.Q8_0: 8.5, Kind.Q4_0: 4.5}[kind]
    network = packed.layers[0].feed_forward.linears[1:]
    assert sum(one.num_bytes for one in network) < 1.3 * bits / 8 * sum(
        one.num_parameters for one in network
    )
    with torch.inference_mode():
        found, expected = compute_logits(packed, token_ids), compute_logits(plain, token_ids)
    assert (found - expected).abs().mean() < 0.1 * expected.std()
