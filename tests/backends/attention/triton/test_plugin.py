"""The plugin that offers the Triton backend."""

from __future__ import annotations

from tokenmill.backends.attention.triton import plugin as triton_plugin
from tokenmill.backends.attention.triton.backend import TritonAttention
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry


def test_offers_the_backend_s_class_under_the_name_triton() -> None:
    registry = Registry()
    with registry.accepting(Source(plugin="triton-attention")):
        triton_plugin.register(registry)
    assert registry.build("attention_backend", "triton") is TritonAttention
