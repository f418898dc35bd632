"""Runs a draft model for a whole batch: one pass per token of the longest draft.

Its KV cache is a second set of layers with the target's block tables. The first pass computes the
known tokens that the draft model has not computed yet, usually one or two per request. Each later
pass computes one draft token per request. Its K and V become valid if the target accepts the token.

Shape suffixes: t tokens, r rows, d logits of the draft model, v the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from ...core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from ...core.plan import BlockCopies, CopyDirection, Grant, StepPlan
from ..attention.base import AttentionBackend
from ..running.runner import StepModel
from ..state.input_batch import InputBatch, build_input_batch
from ..state.kv_cache import KVCache, copy_blocks
from ..state.request_state import RequestState
from .passes import DraftPasses, longest_first
from .sequence import MOST_USUAL_TOKENS, DraftProgress, DraftSequence, share_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftParts:
    """A draft model's weights, KV cache and limits."""

    model: StepModel
    attention: AttentionBackend
    kv_cache: KVCache
    num_host_blocks: int
    max_len: int
    """Maximum sequence length of the draft model, in tokens."""
    token_ids_d: torch.Tensor | None
    """int64: the target's token id of each logit; None if logits are in the order of all ids."""
    vocab_size: int
    """The target's vocabulary size."""


class DraftRunner:
    """Proposes drafts with a draft model.

    Call `begin_step` before the target's step, and `propose` after it, both on the device thread.
    """

    def __init__(self, parts: DraftParts, states: Mapping[str, RequestState]) -> None:
        """`states` is the live view of the states in the target's runner."""
        cache = parts.kv_cache
        self._parts = parts
        self._states = states
        self._progress: dict[str, DraftProgress] = {}
        self._passes = DraftPasses(
            cache.device,
            token_ids_d=parts.token_ids_d,
            vocab_size=parts.vocab_size,
            sampling=parts.model.sampling,
        )
        self._validity = DraftValidity(cache.num_blocks, parts.num_host_blocks, cache.block_size)

    @torch.inference_mode()
    def begin_step(self, plan: StepPlan) -> None:
        """Apply a plan's starts, ends, copies and new blocks to the draft model's KV cache."""
        for engine_id in plan.ended:
            self._progress.pop(engine_id, None)
        for copies in plan.copies:
            copy_blocks(self._parts.kv_cache, self._parts.attention, copies)
            self._validity.copy(copies)
        started = {start.engine_id for start in plan.starts}
        for grant in plan.grants:
            if grant.engine_id in started:
                num_valid = self._validity.start(_new_blocks(grant), grant.start)
                self._progress[grant.engine_id] = DraftProgress(num_valid, num_valid)
            elif grant.new_block_ids:
                self._take_blocks(grant)

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """See DraftModel. A request gets no draft if its known tokens cannot all be computed in
        this step, or if it is too long for the draft model."""
        found = [self._sequence(place, request) for place, request in enumerate(batch.requests)]
        sequences = share_budget([one for one in found if one is not None], batch.token_budget)
        drafts = [Draft()] * len(batch.requests)
        if not sequences:
            return drafts
        with torch.inference_mode():
            logits_rd = self._compute_known(sequences)
            drafting = [one for one in sequences if not one.num_missing]
            if drafting:
                self._draft(drafting, logits_rd, drafts)
        return drafts

    def _take_blocks(self, grant: Grant) -> None:
        """Mark a grant's new blocks as empty for the draft model."""
        self._validity.clear(_new_blocks(grant))
        state = self._states.get(grant.engine_id)
        progress = self._progress.get(grant.engine_id)
        if state is not None and progress is not None:  # else it was lost in a step that failed
            progress.keep_slots(self._num_slots(state))

    def _sequence(self, place: int, request: ProposalRequest) -> DraftSequence | None:
        state = self._states[request.engine_id]
        progress = self._progress[request.engine_id]
        num_known = len(state.token_ids)
        progress.catch_up_with(state.token_ids)
        if num_known - progress.num_computed > MOST_USUAL_TOKENS:
            # Another request that shares its blocks may have computed these tokens meanwhile.
            num_valid = min(self._validity.count(state.tables[0].block_ids), num_known - 1)
            progress.num_computed = max(progress.num_computed, num_valid)
            progress.num_marked = max(progress.num_marked, num_valid)
        num_slots = self._num_slots(state)
        # One more, because the last draft's K and V are never computed.
        num_drafts = min(num_slots, self._parts.max_len) - num_known + 1
        if num_drafts < 1:
            return None
        return DraftSequence(
            place=place,
            state=state,
            progress=progress,
            num_drafts=min(num_drafts, request.max_draft_tokens),
        )

    def _compute_known(self, sequences: Sequence[DraftSequence]) -> torch.Tensor:
        """Run the first pass; returns logits [r, d] of the sequences with no tokens missing after
        it, in order."""
        grants = [one.known_grant() for one in sequences]
        logits_rd = self._parts.model.logits(self._input(grants, sequences))
        for one in sequences:
            progress = one.progress
            progress.num_computed += one.num_tokens
            self._validity.mark(one.block_table, progress.num_marked, progress.num_computed)
            progress.num_marked = progress.num_computed
        return logits_rd

    def _draft(
        self, sequences: Sequence[DraftSequence], logits_rd: torch.Tensor, drafts: list[Draft]
    ) -> None:
        """Run all other passes, and write the drafts to `drafts`."""
        order = longest_first(sequences)
        rows = [sequences[i] for i in order]
        if order != list(range(len(order))):
            logits_rd = logits_rd[order]

        def next_logits(index: int, token_ids_r: torch.Tensor) -> torch.Tensor:
            return self._compute_drafts(rows[: len(token_ids_r)], index, token_ids_r)

        for one, draft in zip(rows, self._passes.draft(rows, logits_rd, next_logits), strict=True):
            one.progress.ahead = list(draft.token_ids[: one.num_drafts - 1])
            drafts[one.place] = draft

    def _compute_drafts(
        self, rows: Sequence[DraftSequence], index: int, token_ids_r: torch.Tensor
    ) -> torch.Tensor:
        """Run the pass over drafts number `index`. The tokens stay on the device."""
        batch = self._input([one.draft_grant(index) for one in rows], rows)
        return self._parts.model.logits(replace(batch, token_ids_t=token_ids_r.contiguous()))

    def _num_slots(self, state: RequestState) -> int:
        return len(state.tables[0]) * self._parts.kv_cache.block_size

    def _input(self, grants: Sequence[Grant], sequences: Sequence[DraftSequence]) -> InputBatch:
        cache = self._parts.kv_cache
        return build_input_batch(grants, sequences, cache.block_size, cache.device)


def _new_blocks(grant: Grant) -> Sequence[int]:
    """The new blocks of the only group: with a draft model's KV all layers share their blocks."""
    return grant.new_block_ids[0] if grant.new_block_ids else ()


BlockTable = npt.NDArray[np.int32]


class DraftValidity:
    """Counts the valid slots of each block, on the device and the host, from its first slot on.

    The target computes every token, the draft model only tokens of requests that speculate. So a
    block from the prefix cache, or one swapped in from the host, may lack the draft model's
    content.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._device = np.zeros(num_blocks, dtype=np.int32)
        self._host = np.zeros(num_host_blocks, dtype=np.int32)

    def copy(self, copies: BlockCopies) -> None:
        is_out = copies.direction is CopyDirection.OUT
        source, target = (self._device, self._host) if is_out else (self._host, self._device)
        for source_block, target_block in copies.pairs:
            target[target_block] = source[source_block]

    def clear(self, block_ids: Sequence[int] | BlockTable) -> None:
        """Mark these blocks as empty: they get new content."""
        self._device[np.asarray(block_ids, dtype=np.int64)] = 0

    def start(self, block_ids: Sequence[int], num_tokens: int) -> int:
        """Start a request whose first `num_tokens` tokens are in these blocks already. Returns how
        many of them, from the first on, are valid."""
        first, rest = divmod(num_tokens, self._block_size)
        if rest:
            self._device[block_ids[first]] = min(self._device[block_ids[first]], rest)
            first += 1
        self.clear(block_ids[first:])
        return self.count(np.array(block_ids[:first], dtype=np.int32))

    def count(self, table: BlockTable) -> int:
        """The number of valid tokens of a block table, from its first on."""
        valid = self._device[table]
        full = int((valid == self._block_size).cumprod().sum())
        return full * self._block_size + (int(valid[full]) if full < len(valid) else 0)

    def mark(self, table: BlockTable, start: int, end: int) -> None:
        """Mark tokens [start, end) of a block table as valid. The tokens before must be valid."""
        first, last = start // self._block_size, -(-end // self._block_size)
        ends = np.minimum(end - np.arange(first, last) * self._block_size, self._block_size)
        blocks = table[first:last]
        self._device[blocks] = np.maximum(self._device[blocks], ends)
