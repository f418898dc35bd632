"""The plugin that offers the backend flash-attn."""

from __future__ import annotations

from tokenmill.backends.attention import flash_attn_plugin
from tokenmill.backends.attention.flash_attn import FlashAttention
from tokenmill.core.plugin_info import Source
from tokenmill.core.registry import Registry


def test_offers_the_backend_s_class_under_its_name() -> None:
    registry = Registry()
    registry.source = Source(plugin="flash-attn")
    flash_attn_plugin.register(registry)
    assert registry.build("attention_backend", "flash-attn") is FlashAttention
