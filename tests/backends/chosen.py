"""The backends of an engine: a given attention backend, and the packaged default of the rest."""

from __future__ import annotations

from typing import Any

from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.backends.linear.choice import choose_linear_backend
from tokenmill.backends.models.opening import choose_model_impl
from tokenmill.backends.running.parts.model_parts import Backends
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost


def backends_with(attention: Any) -> Backends:
    """A class of attention backend, with the default of the others."""
    plugins = PluginHost.load(EngineConfig())
    return Backends(attention, choose_linear_backend(plugins), choose_model_impl(plugins))


def backends_of(plugins: PluginHost) -> Backends:
    """The backends that a plugin host chooses."""
    return Backends(
        choose_attention_backend(plugins),
        choose_linear_backend(plugins),
        choose_model_impl(plugins),
    )
