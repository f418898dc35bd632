"""The plugin that offers the plain-torch backend."""

from __future__ import annotations

from tokenmill.backends.attention import torch_plugin
from tokenmill.backends.attention.torch import TorchAttention
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry


def test_offers_the_backend_s_class_under_the_name_torch() -> None:
    registry = Registry()
    with registry.accepting(Source(plugin="torch-attention")):
        torch_plugin.register(registry)
    assert registry.build("attention_backend", "torch") is TorchAttention
