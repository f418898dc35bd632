"""`--attention-backend flash-attn,cuda-paged`: one backend for prompts and chunks, one for decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .contract.plugin_info import normalize
from .contract.registry import Provider, Registry
from .errors import PluginError
from .suggest import did_you_mean


def build_pair(
    registry: Registry, pair: Sequence[Provider], options: Mapping[str, object], where: str
) -> tuple[Any, Any]:
    """What the factories of both return, prompts first; each gets the options that it takes.

    `where` is the table that the options come from. Raises PluginError for an option that neither
    takes.
    """
    known = {p: {option.name for option in p.describe().options} for p in pair}
    for key in options:
        if not any(_field(key) in names for names in known.values()):
            near = did_you_mean(_field(key), [name for names in known.values() for name in names])
            raise PluginError(
                f"{where} {key}: neither {pair[0].name!r} nor {pair[1].name!r} has such an option"
                f"{near or '.'}"
            )
    prefill, decode = (
        registry.build(
            p.kind,
            p.name,
            {key: value for key, value in options.items() if _field(key) in known[p]},
            where=where,
        )
        for p in pair
    )
    return prefill, decode


def _field(key: str) -> str:
    return normalize(key).replace("-", "_")
