"""The plugin that offers the backend xformers."""

from __future__ import annotations

from tokenmill.backends.attention import xformers_plugin
from tokenmill.backends.attention.xformers import XformersAttention
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry


def test_offers_the_backend_s_class_under_its_name() -> None:
    registry = Registry()
    with registry.accepting(Source(plugin="xformers")):
        xformers_plugin.register(registry)
    assert registry.build("attention_backend", "xformers") is XformersAttention
