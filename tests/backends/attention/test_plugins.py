"""The plugins that offer attention backends."""

from __future__ import annotations

import pytest

from tokenmill.backends import offers
from tokenmill.backends.attention.flash.backend import FlashAttention
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.attention.triton.backend import TritonAttention
from tokenmill.backends.attention.xformers.backend import XformersAttention
from tokenmill.backends.cuda.attention import CudaPagedAttention
from tokenmill.backends.offers import OneClass
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry


@pytest.mark.parametrize(
    ("plugin", "name", "backend"),
    [
        (offers.torch_attention, "torch", TorchAttention),
        (offers.xformers, "xformers", XformersAttention),
        (offers.flash_attention, "flash-attn", FlashAttention),
        (offers.triton_attention, "triton", TritonAttention),
        (offers.cuda_paged, "cuda-paged", CudaPagedAttention),
    ],
)
def test_a_plugin_offers_its_backends_class(plugin: OneClass, name: str, backend: type) -> None:
    registry = Registry()
    with registry.accepting(Source(plugin=name)):
        plugin.register(registry)
    assert registry.build("attention_backend", name) is backend
