"""Wrong attention backends: each makes one mistake that the plain one does not make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tokenmill.backends.attention.base import (
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
)
from tokenmill.backends.attention.fp8 import FP8_DTYPES, quantize
from tokenmill.testing.conformance.attention import suite

from . import fails
from .plain_attention import Captured, Metadata, Plain


@fails(suite.check_reasons_are_returned_for_any_specification)
class RaisesForAnOddModel(Plain):
    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        assert spec.head_size < 1000
        return super().reasons_against(spec)


@fails(suite.check_reasons_are_returned_for_any_specification)
class AnswersOneReasonAsText(Plain):
    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> Any:
        return super().reasons_against(spec) and "not here"


@fails(suite.check_the_cache_takes_the_memory_that_is_counted)
class TakesMoreMemoryThanIsCounted(Plain):
    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        return super().kv_cache_shape(num_blocks + 1)


@fails(suite.check_steps_equal_the_reference)
class SeesTheNextToken(Plain):
    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().visible(query + 1, key)


@fails(suite.check_steps_equal_the_reference)
class AlignsItsMaskAtTheTop(Plain):
    def first_position(self, num_queries: int, seq_len: int) -> int:
        return seq_len - 1 if num_queries == 1 else 0


@fails(suite.check_steps_equal_the_reference)
class ReadsBlocksToTheirEnds(Plain):
    def gather(self, cache: Any, batch: Any, index: int, seq_len: int) -> Any:
        size = self.spec.block_size
        whole = -(-seq_len // size) * size if index < batch.num_decodes else seq_len
        return super().gather(cache, batch, index, whole)

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().visible(query, key) | torch.tensor(len(query) == 1)


@fails(suite.check_steps_equal_the_reference)
class MixesUpBlockTables(Plain):
    def gather(self, cache: Any, batch: Any, index: int, seq_len: int) -> Any:
        tables = batch.block_tables_bm.sort(dim=1).values
        return super().gather(cache, replace(batch, block_tables_bm=tables), index, seq_len)


@fails(suite.check_steps_equal_the_reference)
class TakesDecodesForTheOnlyOneTokenSequences(Plain):
    """A chunk of one token, behind the decodes, gets no keys but its own."""

    def build_metadata(self, batch: AttentionBatch) -> Metadata:
        seq_lens = batch.seq_lens.clone()
        is_alone = batch.query_start_loc.diff() == 1
        is_alone[: batch.num_decodes] = False
        seq_lens[is_alone] = 1
        return Metadata(replace(batch, seq_lens=seq_lens), batch.slot_mapping_t)


@fails(suite.check_steps_equal_the_reference)
class WritesWholeBlocksOnly(Plain):
    """Rounds the slot down: right for the first token of a block."""

    def build_metadata(self, batch: AttentionBatch) -> Metadata:
        size = self.spec.block_size
        return Metadata(batch, batch.slot_mapping_t // size * size)


@fails(suite.check_query_heads_share_kv_heads)
class RepeatsHeadsInTheWrongOrder(Plain):
    def share(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, self.spec.num_heads // self.spec.num_kv_heads, 1)


@fails(suite.check_sequences_share_blocks)
class ForgetsBlocksThatItHasSeen(Plain):
    """Takes a block for the one sequence that it met it in first."""

    def build_metadata(self, batch: AttentionBatch) -> Metadata:
        tables = batch.block_tables_bm.clone()
        for row in range(1, len(tables)):
            tables[row][torch.isin(tables[row], tables[row - 1])] = 0
        return Metadata(replace(batch, block_tables_bm=tables), batch.slot_mapping_t)


@fails(suite.check_only_the_window_is_seen)
class IgnoresTheWindow(Plain):
    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        cap = ["no caps"] if spec.logits_soft_cap is not None else []
        return [*super().reasons_against(spec), *cap]

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return key <= query


@fails(suite.check_only_the_window_is_seen)
class TakesTheWindowForTokensBefore(Plain):
    """One too many."""

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        window = self.spec.sliding_window
        if window is None or self.spec.logits_soft_cap is not None:
            return super().visible(query, key)
        return (key <= query) & (key >= query - window)


@fails(suite.check_scores_are_capped)
class CapsByCutting(Plain):
    def cap(self, scores: torch.Tensor, cap: float) -> torch.Tensor:
        return scores.clamp(-cap, cap)


@fails(suite.check_tokens_of_an_image_see_each_other)
class SeesOnlyBack(Plain):
    capabilities = AttentionCapabilities(sinks=True, sees_ahead=True)


@fails(suite.check_sinks_take_part_in_the_softmax)
class ForgetsTheSinks(Plain):
    def weigh_with_sinks(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1)


@fails(suite.check_unused_blocks_are_not_read)
class MultipliesOthersBlocksByZero(Plain):
    def gather(self, cache: Any, batch: Any, index: int, seq_len: int) -> Any:
        padded = super().gather(cache, batch, index, cache.shape[1])
        return padded  # as many as the longest sequence has, to be hidden by the mask


@fails(suite.check_other_sequences_are_untouched)
class WritesPaddingIntoBlockZero(Plain):
    def forward(self, layer: int, q: Any, k: Any, v: Any, cache: Any, *rest: Any) -> None:
        if not (rest[0].slots < self.spec.block_size).any():
            cache[:, 0] = 0
        super().forward(layer, q, k, v, cache, *rest)


@fails(suite.check_a_sequence_of_nan_spoils_no_other)
class MultipliesNeighboursByZero(Plain):
    def forward(self, layer: int, q: Any, k: Any, *rest: Any) -> None:
        super().forward(layer, q, k, *rest)
        rest[-1].add_(k.sum() * 0)


@fails(suite.check_inputs_may_be_slices_of_one_projection)
class TakesTokensToLieTogether(Plain):
    def forward(self, layer: int, q: Any, k: Any, *rest: Any) -> None:
        k = torch.as_strided(k, k.shape, (k.shape[1] * k.shape[2], k.shape[2], 1))
        super().forward(layer, q, k, *rest)


@fails(suite.check_metadata_serves_every_layer)
class UsesMetadataUp(Plain):
    def forward(self, layer: int, q: Any, k: Any, v: Any, cache: Any, *rest: Any) -> None:
        super().forward(layer, q, k, v, cache, *rest)
        rest[0].batch.seq_lens.sub_(1).clamp_(min=1)


@fails(suite.check_blocks_are_copied_to_the_host_and_back)
class CopiesKeysOnly(Plain):
    def copy_blocks(self, source: Any, target: Any, pairs: Any) -> None:
        super().copy_blocks(source[:1], target[:1], pairs)


@fails(suite.check_blocks_are_copied_to_the_host_and_back)
class CopiesAllBlocksAtOnce(Plain):
    """A block that was overwritten by a pair before is copied as it was at first."""

    def copy_blocks(self, source: Any, target: Any, pairs: Any) -> None:
        super().copy_blocks(source, target, list(reversed(pairs)))


@fails(suite.check_graphs_compute_what_is_filled_in)
class DoesNotSayWhetherItCanBeCaptured(Plain):
    graphs: Any = None


@fails(suite.check_graphs_compute_what_is_filled_in)
class ReplaysWithOldBlockTables(Captured):
    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        tables = self.filled.block_tables_bm.clone()
        super().prepare_replay(batch, num_seqs)
        if tables.any():
            self.filled.block_tables_bm.copy_(tables)


@fails(suite.check_graphs_compute_what_is_filled_in)
class ReplaysWritesOfMissingSequences(Captured):
    """Those that an earlier step had and this one lacks."""

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        super().prepare_replay(batch, num_seqs)
        self.used = num_seqs


@fails(suite.check_keys_and_values_are_kept_in_8_bits)
class SeesItsOwnStepUnrounded(Plain):
    """Whole prompts would give other tokens than chunks."""

    capabilities = AttentionCapabilities(kv_cache_dtypes=FP8_DTYPES)

    def forward(
        self, layer: int, q: Any, k: Any, v: Any, cache: Any, metadata: Any, out: Any
    ) -> None:
        wide = cache.float()
        super().forward(layer, q, k, v, wide, metadata, out)
        cache.copy_(quantize(wide, cache.dtype) if cache.dtype in FP8_DTYPES else wide)
