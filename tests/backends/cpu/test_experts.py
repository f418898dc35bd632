"""Experts by native products: each has a matrix of its own, packed as in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.oracle.architectures import MODELS
from tests.oracle.test_architectures import save_in_mxfp4
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.projections import CPULinear, NativeLinear
from tokenmill.backends.linear.base import LinearSpec, Projection
from tokenmill.backends.models.native.loader import load_decoder
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


def test_experts_of_gpt_oss_stay_packed(library: Library, tmp_path: Path) -> None:
    """18 bytes for 32 numbers of MXFP4: one more than in the file."""
    save_in_mxfp4(MODELS["gpt-oss"].make(), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    packed, plain = (
        load_decoder(checkpoint, dtype=dtype, device=CPU, progress=no_progress, linear=linear)
        for dtype, linear in (
            (torch.bfloat16, CPULinear(LinearSpec(dtype=torch.bfloat16, device=CPU))),
            (torch.float32, None),
        )
    )
    x = torch.randn(5, checkpoint.config.hidden_size, generator=torch.Generator().manual_seed(1))
    for layer, reference in zip(packed.layers, plain.layers, strict=True):
        experts = layer.feed_forward.linears[1:]
        biases = sum(one.packed.num_rows for one in map(native, experts))
        assert sum(one.num_bytes for one in experts) <= 4 * biases + 18 / 32 * sum(
            one.num_parameters for one in experts
        )
        for network, exact in zip(
            layer.feed_forward.networks, reference.feed_forward.networks, strict=True
        ):
            found, expected = network(x.bfloat16()).float(), exact(x)
            assert (found - expected).norm() < 0.03 * expected.norm()


def native(projection: Projection) -> NativeLinear:
    """The product that an expert's projection computes with."""
    product = getattr(projection, "both", projection)
    assert isinstance(product, NativeLinear)
    return product
