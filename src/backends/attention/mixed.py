"""Attention of models in which layers differ, such as models with a window in some layers.

A backend's object serves layers with one AttentionSpec and one set of block tables. Here each group
of layers has an object for each of its specs, and all layers have caches of one shape.

Shape suffixes: t tokens of the step, h query heads, k KV heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from ...core.errors import ConfigError
from ...core.interfaces import Progress, no_progress
from ...core.log import get_logger
from ..choosing.auto import AutoBackend
from .base import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
    GraphSupport,
)
from .reasons import reasons_against

log = get_logger("plugins")


class MixedAttention:
    """Gives each layer to the backend of its spec; AttentionBackend describes the methods."""

    graphs: GraphSupport = "never"
    capabilities = AttentionCapabilities(sinks=True, sees_ahead=True)

    def __init__(
        self,
        backends: Sequence[AttentionBackend],
        index_of_layer: Sequence[int],
        group_of_layer: Sequence[int],
    ) -> None:
        """`index_of_layer` has the index in `backends` of every layer, and `group_of_layer` its
        group; all layers of one backend are in one group.

        Raises ConfigError if the shapes of the backends' caches differ.
        """
        self.name = backends[0].name
        self._backends = tuple(backends)
        self._index_of_layer = tuple(index_of_layer)
        groups = dict(zip(index_of_layer, group_of_layer, strict=True))
        self._groups = [groups[index] for index in range(len(backends))]
        shapes = {backend.kv_cache_shape(1) for backend in backends}
        if len(shapes) > 1:
            raise ConfigError(
                f"attention backend {self.name!r} gives a KV block different shapes in different "
                f"layers of this model: {', '.join(map(str, shapes))}"
            )

    @property
    def layers(self) -> list[AttentionBackend]:
        """The backend of every layer."""
        return [self._backends[index] for index in self._index_of_layer]

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return the shape of one layer's cache, the same for all layers."""
        return self._backends[0].kv_cache_shape(num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> tuple[Any, ...]:
        batches, pairs = batch.by_group, zip(self._backends, self._groups, strict=True)
        return tuple(backend.build_metadata(batches[group]) for backend, group in pairs)

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: tuple[Any, ...],
        out_thd: torch.Tensor,
    ) -> None:
        index = self._index_of_layer[layer]
        self._backends[index].forward(
            layer, q_thd, k_tkd, v_tkd, kv_cache, metadata[index], out_thd
        )

    def use_sinks(self, sinks: Sequence[torch.Tensor]) -> None:
        """Pass the sinks of each layer on; see AttentionCapabilities."""
        for backend in self._backends:
            cast(Any, backend).use_sinks(sinks)

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        self._backends[0].copy_blocks(source, target, pairs)


def reasons_against_layers(
    backend: Any, specs: Sequence[AttentionSpec], progress: Progress = no_progress
) -> list[str]:
    """Return every reason why a backend cannot serve layers with these specs.

    `backend` is a class, or an object that is used like one.
    """
    if isinstance(backend, AutoBackend):
        chosen, reasons = backend.choose(tuple(dict.fromkeys(specs)))
        return [] if chosen is not None else reasons
    found = (
        reason
        for spec in dict.fromkeys(specs)
        for reason in reasons_against(backend, spec, progress)
    )
    return list(dict.fromkeys(found))


def make_attention(
    backend: Any, specs: Sequence[AttentionSpec], group_of_layer: Sequence[int] = ()
) -> Any:
    """Make the attention of a model; `specs` has one spec per layer. Returns an AttentionBackend.

    `group_of_layer`: the group of every layer, see KVGroups. Empty: all are in one group.

    Raises ConfigError if the caches of different layers would have different shapes.
    """
    groups = group_of_layer or [0] * len(specs)
    kinds = list(zip(specs, groups, strict=True))
    distinct = list(dict.fromkeys(kinds))
    if distinct == [(specs[0], 0)]:
        return backend(specs[0])
    if isinstance(backend, AutoBackend):
        backend, passed_over = backend.choose(tuple(dict.fromkeys(specs)))
        log.debug("attention_backend_chosen", backend=backend.name, passed_over=passed_over)
    indices = [distinct.index(kind) for kind in kinds]
    return MixedAttention([backend(spec) for spec, _ in distinct], indices, groups)
