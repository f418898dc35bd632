"""The plugins that offer attention backends."""

from __future__ import annotations

from types import ModuleType

import pytest

from tokenmill.backends.attention.flash import plugin as flash_plugin
from tokenmill.backends.attention.flash.backend import FlashAttention
from tokenmill.backends.attention.torch import plugin as torch_plugin
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.attention.triton import plugin as triton_plugin
from tokenmill.backends.attention.triton.backend import TritonAttention
from tokenmill.backends.attention.xformers import plugin as xformers_plugin
from tokenmill.backends.attention.xformers.backend import XformersAttention
from tokenmill.backends.cuda import plugin as cuda_plugin
from tokenmill.backends.cuda.attention import CudaPagedAttention
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry


@pytest.mark.parametrize(
    ("plugin", "name", "backend"),
    [
        (torch_plugin, "torch", TorchAttention),
        (xformers_plugin, "xformers", XformersAttention),
        (flash_plugin, "flash-attn", FlashAttention),
        (triton_plugin, "triton", TritonAttention),
        (cuda_plugin, "cuda-paged", CudaPagedAttention),
    ],
)
def test_a_plugin_offers_its_backends_class(plugin: ModuleType, name: str, backend: type) -> None:
    registry = Registry()
    with registry.accepting(Source(plugin=name)):
        plugin.register(registry)
    assert registry.build("attention_backend", name) is backend
