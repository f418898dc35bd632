"""Products by torch: what the reference itself must do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Kind
from transformers.activations import ACT2FN

from tokenmill.backends.linear.base import ACTIVATIONS, LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks, gguf_weights

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


def backend(dtype: torch.dtype = torch.float32) -> TorchLinear:
    return TorchLinear(LinearSpec(dtype=dtype, device=CPU))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_that_config_json_names(name: str) -> None:
    x = torch.linspace(-6, 6, 1001)
    assert torch.allclose(ACTIVATIONS[name](x), ACT2FN[name](x), rtol=0, atol=1e-6)


def test_one_segment_is_not_copied() -> None:
    weights = random(8, 4)
    assert backend().linear([weights], None).weight.data_ptr() == weights.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
def test_segments_are_one_product(dtype: torch.dtype) -> None:
    parts, bias = [random(size, 16, dtype=dtype) for size in (5, 1, 7)], random(13, dtype=dtype)
    product, x = backend(dtype).linear(parts, bias), random(3, 16, dtype=dtype)
    assert torch.equal(product(x), F.linear(x, torch.cat(parts), bias))
    assert product(x).dtype is dtype
    assert product.num_parameters == 13 * 17
    assert product.num_bytes == 13 * 17 * dtype.itemsize


def test_gate_and_up_are_computed_by_one_product_with_one_bias() -> None:
    gate, up, bias, x = random(6, 16), random(6, 16) * 2, random(12), random(3, 16)
    product = backend().gate_up(gate, up, bias, "gelu")
    exact = F.gelu(F.linear(x, gate, bias[:6])) * F.linear(x, up, bias[6:])
    assert torch.allclose(product(x), exact, rtol=0, atol=1e-5)
    assert product.num_parameters == 12 * 17
    assert product.num_bytes == 4 * 12 * 17


def test_a_head_multiplies_in_the_type_of_its_weights_and_returns_float32() -> None:
    weights, x = random(9, 16, dtype=torch.bfloat16), random(3, 16, dtype=torch.bfloat16)
    head = backend(torch.bfloat16).head(weights)
    assert torch.equal(head(x), F.linear(x, weights).float())
    assert head(x).dtype is torch.float32
    assert (head.num_parameters, head.num_bytes) == (9 * 16, 9 * 16 * 2)


def test_an_empty_step_gives_an_empty_result() -> None:
    x, weights = torch.empty(0, 16), random(4, 16)
    assert backend().linear([weights], None)(x).shape == (0, 4)
    assert backend().gate_up(weights, weights, None, "silu")(x).shape == (0, 4)
    assert backend().head(weights)(x).shape == (0, 4)


def test_packed_weights_are_never_kept_and_are_no_input() -> None:
    packed = gguf_weights(Kind.Q8_0, torch.zeros(4, 34, dtype=torch.uint8))
    for dtype in DTYPES:
        assert not TorchLinear.keeps(LinearSpec(dtype=dtype, device=CPU), GGUFBlocks(Kind.Q8_0))
    with pytest.raises(AssertionError, match="the caller dequantizes"):
        backend().linear([random(4, 32), packed], None)
