"""Two backends that share a KV cache: one computes prompts and chunks, the other decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from ...core.contract.choice import Choice
from ...core.contract.registry import Registry
from ...core.errors import ConfigError, PluginError
from ...core.interfaces import Progress, no_progress
from ...core.wording.suggest import did_you_mean
from ..choosing.auto import option_names, options_of
from .base import (
    AttentionBackend,
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
    is_graphable,
)
from .reasons import reasons_against


class BackendPair:
    """Acts as a backend's class; its backend divides each step between two backends."""

    capabilities = None
    """None: `reasons_against` asks both backends."""

    def __init__(
        self,
        prefill: type[AttentionBackend],
        decode: type[AttentionBackend],
        progress: Progress = no_progress,
    ) -> None:
        """`progress`: of compiling the kernels of both."""
        self.name = f"{prefill.name},{decode.name}"
        self._prefill, self._decode, self._progress = prefill, decode, progress

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        """Return the reasons of both backends, and why they cannot share a cache."""
        pairs = zip((self._prefill, self._decode), self._specs(spec), strict=True)
        found = (
            f"{backend.name}: {reason}"
            for backend, own in pairs
            for reason in reasons_against(backend, own, self._progress)
        )
        return [*self._reasons_of_layout(), *found]

    def __call__(self, spec: AttentionSpec) -> PairedAttention:
        """Make both backends. Raises ConfigError if the shapes of their caches differ."""
        prefill_spec, decode_spec = self._specs(spec)
        prefill, decode = self._prefill(prefill_spec), self._decode(decode_spec)
        shapes = prefill.kv_cache_shape(1), decode.kv_cache_shape(1)
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"attention backends {prefill.name!r} and {decode.name!r} cannot share a KV cache: "
                f"the shape of one block is {shapes[0]} for the first and {shapes[1]} for the "
                "second"
            )
        return PairedAttention(prefill, decode)

    def _specs(self, spec: AttentionSpec) -> tuple[AttentionSpec, AttentionSpec]:
        shared = replace(spec, kv_cache_layout=next(iter(self._shared_layouts()), None))
        return replace(shared, computes_decodes=False), replace(shared, sees_ahead=False)

    def _shared_layouts(self) -> list[Any]:
        """Layouts that both can use, in the order of the decode backend, which reads most."""
        others = self._prefill.capabilities.kv_cache_layouts
        own = self._decode.capabilities.kv_cache_layouts
        return [layout for layout in own if layout in others]

    def _reasons_of_layout(self) -> list[str]:
        silent = [
            f"{backend.name} does not declare the layouts of the KV cache that it supports"
            for backend in (self._prefill, self._decode)
            if not backend.capabilities.kv_cache_layouts
        ]
        if silent:
            return silent
        if self._shared_layouts():
            return []
        return [
            f"{self._prefill.name} and {self._decode.name} have no layout of the KV cache in common"
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMetadata:
    """The metadata of both backends for one step."""

    num_decodes: int
    prefill: Any
    """None: the step has decodes only."""
    decode: Any
    """None: the step has no decodes."""


class PairedAttention:
    """Divides each step between two backends; see AttentionBackend for the contract."""

    capabilities = AttentionCapabilities(sinks=True, sees_ahead=True)

    def __init__(self, prefill: AttentionBackend, decode: AttentionBackend) -> None:
        self.name = f"{prefill.name},{decode.name}"
        self.graphs = decode.graphs
        self._prefill, self._decode = prefill, decode

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        return self._decode.kv_cache_shape(num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> PairedMetadata:
        decodes, others = split_decodes(batch)
        return PairedMetadata(
            num_decodes=batch.num_decodes,
            prefill=None if others is None else self._prefill.build_metadata(others),
            decode=None if decodes is None else self._decode.build_metadata(decodes),
        )

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: PairedMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        first = metadata.num_decodes
        for backend, own, rows in (
            (self._prefill, metadata.prefill, slice(first, None)),
            (self._decode, metadata.decode, slice(first)),
        ):
            if own is not None:
                backend.forward(
                    layer, q_thd[rows], k_tkd[rows], v_tkd[rows], kv_cache, own, out_thd[rows]
                )

    def use_sinks(self, sinks: Sequence[torch.Tensor]) -> None:
        """Pass the sinks of each layer on; see AttentionCapabilities."""
        for backend in (self._prefill, self._decode):
            cast(Any, backend).use_sinks(sinks)

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        self._decode.copy_blocks(source, target, pairs)

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        """Allocate the graphs' memory in the decode backend: graphs contain only decodes."""
        assert is_graphable(self._decode)
        self._decode.begin_capture(max_num_seqs, max_model_len)

    def prepare_capture(self, num_seqs: int) -> PairedMetadata:
        """Return metadata for capturing a step of `num_seqs` decodes."""
        assert is_graphable(self._decode)
        decode = self._decode.prepare_capture(num_seqs)
        return PairedMetadata(num_decodes=num_seqs, prefill=None, decode=decode)

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        assert is_graphable(self._decode)
        self._decode.prepare_replay(batch, num_seqs)


def build_pair(registry: Registry, choice: Choice) -> tuple[Any, Any]:
    """Build the classes of the prefill and the decode backend.

    Each gets the options that it takes. Raises PluginError for an option that neither takes.
    """
    pair, options, where = (choice.provider, *choice.others), choice.options, choice.origin
    known = [name for provider in pair for name in option_names(provider)]
    for key in options:
        if key.replace("-", "_") not in known:
            raise PluginError(
                f"{where} {key}: neither {pair[0].name!r} nor {pair[1].name!r} has such an option"
                f"{did_you_mean(key.replace('-', '_'), known) or '.'}"
            )
    prefill, decode = (
        registry.build(p.kind, p.name, options_of(p, options), where=where) for p in pair
    )
    return prefill, decode


def split_decodes(batch: AttentionBatch) -> tuple[AttentionBatch | None, AttentionBatch | None]:
    """Divide a step into its decodes and the rest; None for a part without sequences."""
    first, count = batch.num_decodes, len(batch.query_lens_host)
    if first in (0, count):
        return (batch, None) if first else (None, batch)
    return _part(batch, 0, first), _part(batch, first, count)


def _part(batch: AttentionBatch, start: int, end: int) -> AttentionBatch:
    """Sequences [start, end), either the decodes or all others.

    A decode has one row, so both parts begin at the same index in sequences and in rows.
    """
    own = slice(start, end)
    rows = slice(start, batch.num_decodes if start == 0 else None)
    return AttentionBatch(
        query_start_loc=batch.query_start_loc[start : end + 1] - start,
        seq_lens=batch.seq_lens[own],
        block_tables_bm=batch.block_tables_bm[own],
        slot_mapping_t=batch.slot_mapping_t[rows],
        last_keys_t=None if start == 0 or batch.last_keys_t is None else batch.last_keys_t[rows],
        query_lens_host=batch.query_lens_host[own],
        seq_lens_host=batch.seq_lens_host[own],
        num_decodes=batch.num_decodes if start == 0 else 0,
    )
