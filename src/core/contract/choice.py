"""The chosen provider of a slot, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .registry import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The provider that is chosen for a slot, and its options."""

    provider: Provider
    options: Mapping[str, object]
    origin: str
    """The table of plugins.toml that the options come from."""
    others: tuple[Provider, ...] = ()
    """For "auto": the providers to try after `provider`, best first."""
    is_pair: bool = False
    """True for two attention backends: `provider` computes prompts and chunks, `others[0]` computes
    decodes."""

    @property
    def name(self) -> str:
        """Name of the provider, or both names of a pair: "flash-attn,cuda-paged"."""
        providers = (self.provider, *self.others) if self.is_pair else (self.provider,)
        return ",".join(provider.name for provider in providers)
