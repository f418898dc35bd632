"""Names of factories, by which another process imports them."""

from __future__ import annotations

from typing import Any

from ...core.contract.registry import Provider
from ...core.errors import PluginError


def factory_name(provider: Provider) -> str:
    """ "package.module:function" of a provider's factory. Raises PluginError if it has no such
    name."""
    return _name_of(provider, provider.factory)


def options_name(provider: Provider) -> str | None:
    """The name of the dataclass with a provider's options; None if it takes none."""
    return None if provider.options is None else _name_of(provider, provider.options)


def _name_of(provider: Provider, found: Any) -> str:
    name: str = found.__qualname__
    if not name.isidentifier() or found.__module__ == "__main__":
        raise PluginError(
            f"{provider} of {provider.source}: {found.__module__}.{name} must be a function or "
            "class of a module, because another process imports it"
        )
    return f"{found.__module__}:{name}"
