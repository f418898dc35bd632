"""The weight formats that enabled plugins offer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ....core.contract.registry import Registry
from ..config.fields import Fields
from .method import Method
from .methods import ReadMethod


def offered_methods(registry: Registry) -> Mapping[str, ReadMethod]:
    """Return the reader of each format by its names; it is made when a model needs it."""
    return {
        name: partial(_read, registry, provider.name)
        for provider in registry.providers("weight_format")
        for name in (provider.name, *provider.aliases)
    }


def _read(registry: Registry, name: str, fields: Fields) -> Method:
    """Raises PluginError if the plugin's factory fails, and like ReadMethod."""
    reader: ReadMethod = registry.build("weight_format", name)
    return reader(fields)
