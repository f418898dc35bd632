"""Wrong attention backends: each makes one mistake that the plain one does not make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import (
    AttentionBatch,
    AttentionCapabilities,
    AttentionSpec,
)
from tokenmill.backends.attention.fp8 import FP8_DTYPES, quantize
from tokenmill.testing import AttentionConformance

from .plain_attention import Captured, Metadata, Plain


class TestRaisesForAnOddModel(AttentionConformance):
    fails = "test_reasons_are_told_for_any_specification"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            @classmethod
            def reasons_against(cls, spec: AttentionSpec) -> list[str]:
                assert spec.head_size < 1000
                return super().reasons_against(spec)

        return Backend


class TestAnswersOneReasonAsText(AttentionConformance):
    fails = "test_reasons_are_told_for_any_specification"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            @classmethod
            def reasons_against(cls, spec: AttentionSpec) -> Any:
                return super().reasons_against(spec) and "not here"

        return Backend


class TestTakesMoreMemoryThanIsCounted(AttentionConformance):
    fails = "test_the_cache_takes_the_memory_that_is_counted"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
                return super().kv_cache_shape(num_blocks + 1)

        return Backend


class TestSeesTheNextToken(AttentionConformance):
    fails = "test_steps_equal_the_reference"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
                return super().visible(query + 1, key)

        return Backend


class TestAlignsItsMaskAtTheTop(AttentionConformance):
    fails = "test_steps_equal_the_reference"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def first_position(self, num_queries: int, seq_len: int) -> int:
                return seq_len - 1 if num_queries == 1 else 0

        return Backend


class TestReadsBlocksToTheirEnds(AttentionConformance):
    fails = "test_steps_equal_the_reference"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def gather(self, cache: Any, batch: Any, index: int, seq_len: int) -> Any:
                size = self.spec.block_size
                whole = -(-seq_len // size) * size if index < batch.num_decodes else seq_len
                return super().gather(cache, batch, index, whole)

            def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
                return super().visible(query, key) | torch.tensor(len(query) == 1)

        return Backend


class TestMixesUpBlockTables(AttentionConformance):
    fails = "test_steps_equal_the_reference"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def gather(self, cache: Any, batch: Any, index: int, seq_len: int) -> Any:
                tables = batch.block_tables_bm.sort(dim=1).values
                return super().gather(cache, replace(batch, block_tables_bm=tables), index, seq_len)

        return Backend


class TestTakesDecodesForTheOnlyOneTokenSequences(AttentionConformance):
    """A chunk of one token, behind the decodes, gets no keys but its own."""

    fails = "test_steps_equal_the_reference"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def build_metadata(self, batch: AttentionBatch) -> Metadata:
                seq_lens = batch.seq_lens.clone()
                is_alone = batch.query_start_loc.diff() == 1
                is_alone[: batch.num_decodes] = False
                seq_lens[is_alone] = 1
                return Metadata(replace(batch, seq_lens=seq_lens), batch.slot_mapping_t)

        return Backend


class TestWritesWholeBlocksOnly(AttentionConformance):
    """Rounds the slot down: right for the first token of a block."""

    fails = "test_steps_equal_the_reference"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def build_metadata(self, batch: AttentionBatch) -> Metadata:
                size = self.spec.block_size
                return Metadata(batch, batch.slot_mapping_t // size * size)

        return Backend


class TestRepeatsHeadsInTheWrongOrder(AttentionConformance):
    fails = "test_query_heads_share_kv_heads"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def share(self, x: torch.Tensor) -> torch.Tensor:
                return x.repeat(1, self.spec.num_heads // self.spec.num_kv_heads, 1)

        return Backend


class TestForgetsBlocksThatItHasSeen(AttentionConformance):
    """Takes a block for the one sequence that it met it in first."""

    fails = "test_sequences_share_blocks"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def build_metadata(self, batch: AttentionBatch) -> Metadata:
                tables = batch.block_tables_bm.clone()
                for row in range(1, len(tables)):
                    tables[row][torch.isin(tables[row], tables[row - 1])] = 0
                return Metadata(replace(batch, block_tables_bm=tables), batch.slot_mapping_t)

        return Backend


class TestIgnoresTheWindow(AttentionConformance):
    fails = "test_only_the_window_is_seen"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            @classmethod
            def reasons_against(cls, spec: AttentionSpec) -> list[str]:
                cap = ["no caps"] if spec.logits_soft_cap is not None else []
                return [*super().reasons_against(spec), *cap]

            def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
                return key <= query

        return Backend


class TestTakesTheWindowForTokensBefore(AttentionConformance):
    """One too many."""

    fails = "test_only_the_window_is_seen"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
                window = self.spec.sliding_window
                if window is None or self.spec.logits_soft_cap is not None:
                    return super().visible(query, key)
                return (key <= query) & (key >= query - window)

        return Backend


class TestCapsByCutting(AttentionConformance):
    fails = "test_scores_are_capped"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def cap(self, scores: torch.Tensor, cap: float) -> torch.Tensor:
                return scores.clamp(-cap, cap)

        return Backend


class TestForgetsTheSinks(AttentionConformance):
    fails = "test_sinks_take_part_in_the_softmax"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def weigh_with_sinks(self, scores: torch.Tensor) -> torch.Tensor:
                return scores.softmax(-1)

        return Backend


class TestMultipliesOthersBlocksByZero(AttentionConformance):
    fails = "test_unused_blocks_are_not_read"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def gather(self, cache: Any, batch: Any, index: int, seq_len: int) -> Any:
                padded = super().gather(cache, batch, index, cache.shape[1])
                return padded  # as many as the longest sequence has, to be hidden by the mask

        return Backend


class TestWritesPaddingIntoBlockZero(AttentionConformance):
    fails = "test_other_sequences_are_untouched"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def forward(self, layer: int, q: Any, k: Any, v: Any, cache: Any, *rest: Any) -> None:
                if not (rest[0].slots < self.spec.block_size).any():
                    cache[:, 0] = 0
                super().forward(layer, q, k, v, cache, *rest)

        return Backend


class TestMultipliesNeighboursByZero(AttentionConformance):
    fails = "test_a_sequence_of_nan_spoils_no_other"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def forward(self, layer: int, q: Any, k: Any, *rest: Any) -> None:
                super().forward(layer, q, k, *rest)
                rest[-1].add_(k.sum() * 0)

        return Backend


class TestTakesTokensToLieTogether(AttentionConformance):
    fails = "test_inputs_may_be_slices_of_one_projection"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def forward(self, layer: int, q: Any, k: Any, *rest: Any) -> None:
                k = torch.as_strided(k, k.shape, (k.shape[1] * k.shape[2], k.shape[2], 1))
                super().forward(layer, q, k, *rest)

        return Backend


class TestUsesMetadataUp(AttentionConformance):
    fails = "test_metadata_serves_every_layer"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def forward(self, layer: int, q: Any, k: Any, v: Any, cache: Any, *rest: Any) -> None:
                super().forward(layer, q, k, v, cache, *rest)
                rest[0].batch.seq_lens.sub_(1).clamp_(min=1)

        return Backend


class TestCopiesKeysOnly(AttentionConformance):
    fails = "test_blocks_are_copied_to_the_host_and_back"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def copy_blocks(self, source: Any, target: Any, pairs: Any) -> None:
                super().copy_blocks(source[:1], target[:1], pairs)

        return Backend


class TestCopiesAllBlocksAtOnce(AttentionConformance):
    """A block that was overwritten by a pair before is copied as it was at first."""

    fails = "test_blocks_are_copied_to_the_host_and_back"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            def copy_blocks(self, source: Any, target: Any, pairs: Any) -> None:
                super().copy_blocks(source, target, list(reversed(pairs)))

        return Backend


class TestDoesNotSayWhetherItCanBeCaptured(AttentionConformance):
    fails = "test_graphs_compute_what_is_filled_in"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            graphs: Any = None

        return Backend


class TestReplaysWithOldBlockTables(AttentionConformance):
    fails = "test_graphs_compute_what_is_filled_in"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Captured):
            def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
                tables = self.filled.block_tables_bm.clone()
                super().prepare_replay(batch, num_seqs)
                if tables.any():
                    self.filled.block_tables_bm.copy_(tables)

        return Backend


class TestReplaysWritesOfMissingSequences(AttentionConformance):
    """Those that an earlier step had and this one lacks."""

    fails = "test_graphs_compute_what_is_filled_in"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Captured):
            def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
                super().prepare_replay(batch, num_seqs)
                self.used = num_seqs

        return Backend


class TestSeesItsOwnStepUnrounded(AttentionConformance):
    """Whole prompts would give other tokens than chunks."""

    fails = "test_keys_and_values_are_kept_in_8_bits"

    @pytest.fixture
    def attention_backend(self) -> Any:
        class Backend(Plain):
            capabilities = AttentionCapabilities(kv_cache_dtypes=FP8_DTYPES)

            def forward(
                self, layer: int, q: Any, k: Any, v: Any, cache: Any, metadata: Any, out: Any
            ) -> None:
                wide = cache.float()
                super().forward(layer, q, k, v, wide, metadata, out)
                cache.copy_(quantize(wide, cache.dtype) if cache.dtype in FP8_DTYPES else wide)

        return Backend
