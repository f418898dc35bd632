"""The plugin that offers the backend flash-attn."""

from __future__ import annotations

from tokenmill.backends.attention.flash import plugin as flash_attn_plugin
from tokenmill.backends.attention.flash.backend import FlashAttention
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry


def test_offers_the_backend_s_class_under_its_name() -> None:
    registry = Registry()
    with registry.accepting(Source(plugin="flash-attn")):
        flash_attn_plugin.register(registry)
    assert registry.build("attention_backend", "flash-attn") is FlashAttention
