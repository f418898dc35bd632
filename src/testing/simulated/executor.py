"""An executor without a model, whose tokens show whether the engine's plans were right.

It sees only plans. For each group of layers it writes (token, position, group) into simulated KV
slots through the block table, and the next token is a hash of the slots that it reads back. So one
wrong block, chunk boundary or stale slot changes the output. `expected_tokens` computes the right
output without an engine. Slots of rejected drafts keep their content, so that reading one of them
changes the output, too.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ...core.interfaces import Computation, MediaInfo, ModelInfo
from ...core.plan import BlockCopies, CopyDirection, Grant, RequestStart, StepPlan, StepResult
from ...core.requests.media import MediaItem
from ...core.requests.read_only_collections import ReadOnlyList
from .asking import Propose, SimulatedAsking
from .drafting import DraftingSettings, SimulatedDrafting
from .pictures import BYTES_PER_TOKEN, PLACEHOLDER, SimulatedEncoder

Slot = tuple[int, int, int]
"""(token, position, group)."""
EMPTY: Slot = (-1, -1, -1)
PASSED = -1
"""The entry in a block table for a block that the window has passed."""


Windows = Sequence[int | None]
"""See `ModelInfo.kv_windows`."""


def next_token(
    history: Sequence[int], seed: int, vocab_size: int, windows: Windows = (None,)
) -> int:
    """The simulated model: a hash of the request's seed and the tokens that each group sees."""
    return _hash([history] * len(windows), seed, vocab_size, windows)


def _hash(histories: Sequence[Sequence[int]], seed: int, vocab_size: int, windows: Windows) -> int:
    """The next token. `histories` has per group the tokens, of which it sees the last ones."""
    each = zip(histories, windows, strict=True)
    seen = [tokens if window is None else tokens[-window:] for tokens, window in each]
    numbers = array("q", [seed, *chain.from_iterable(seen)])
    digest = hashlib.blake2b(numbers.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def expected_tokens(
    prompt: Sequence[int],
    num_tokens: int,
    seed: int,
    vocab_size: int,
    windows: Windows = (None,),
) -> list[int]:
    """The tokens that a request must generate, however the engine computed it."""
    history = list(prompt)
    for _ in range(num_tokens):
        history.append(next_token(history, seed, vocab_size, windows))
    return history[len(prompt) :]


def _media_info(cache_bytes: int) -> MediaInfo:
    return MediaInfo(
        config={},
        placeholder_token_id=PLACEHOLDER,
        bytes_per_token=BYTES_PER_TOKEN,
        cache_bytes=cache_bytes,
    )


@dataclass(slots=True)
class _Row:
    token_ids: ReadOnlyList[int]
    seed: int
    num_computed: int = 0
    first_seen: list[int] = field(default_factory=list)
    """Per group, the position of the first token that the last grant's tokens see."""
    block_tables: list[list[int]] = field(default_factory=list)
    """Per group."""
    drafts: tuple[int, ...] = ()
    """Between steps the proposed drafts; within a step those that it verifies."""
    is_pooled: bool = False
    """Whether its hidden states are pooled."""
    start: RequestStart | None = None
    """Set if it has images."""


class SimulatedExecutor:
    """Runs plans on simulated KV slots. Raises AssertionError for a plan that breaks the rules."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        vocab_size: int = 1000,
        max_model_len: int = 2**20,
        kv_windows: Windows = (None,),
        drafting: DraftingSettings | None = None,
        propose: Propose | None = None,
        media_bytes: int = 0,
    ) -> None:
        """Drafts come from a simulated speculator with the settings `drafting`, or from a real
        speculator's `propose`. If both are None, there are no drafts. `media_bytes`: size of the
        encoder cache; 0: the model reads no images."""
        self.info = ModelInfo(
            name="simulated",
            architecture="Simulated",
            dtype="float32",
            device="cpu",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=(),
            num_parameters=0,
            hidden_size=2,
            block_size=block_size,
            num_blocks=num_blocks,
            kv_windows=tuple(kv_windows),
            kv_bytes_per_block=block_size * 16,
            media=_media_info(media_bytes) if media_bytes else None,
        )
        self._encoder = SimulatedEncoder(media_bytes)
        self._slots: list[Slot] = [EMPTY] * (num_blocks * block_size)
        self._host_slots: list[Slot] = [EMPTY] * (num_host_blocks * block_size)
        self._rows: dict[str, _Row] = {}
        self._drafting = (
            None if drafting is None else SimulatedDrafting(drafting, self._next_token, vocab_size)
        )
        self._asking = None if propose is None else SimulatedAsking(propose)
        self._last_step = 0

    def launch(self, plan: StepPlan) -> Computation:
        return Computation(self.run, plan)

    def take_media(self, items: Sequence[MediaItem]) -> None:
        self._encoder.take(items)

    def health(self) -> str | None:
        """None: nothing can be lost."""
        return None

    def run(self, plan: StepPlan) -> StepResult:
        assert plan.step_id > self._last_step, "plans must come in order"
        self._begin(plan)
        if self._asking is not None:
            self._asking.follow(plan)
        for copies in plan.copies:
            self._copy(copies)
        if plan.media is not None:
            self._encoder.follow(plan.media)
        for grant in plan.grants:  # all of a step's KV is written before any of it is read
            self._write(grant)
        if any(window is not None for window in self.info.kv_windows):
            for grant in plan.grants:  # the tokens may be passed before the request is sampled
                self._check_windows(grant)
        token_ids = tuple(self._sample(grant) for grant in plan.grants)
        pooled = tuple(self._pool(grant) for grant in plan.grants)
        return StepResult(
            step_id=plan.step_id,
            token_ids=token_ids,
            pooled=pooled if any(pooled) else None,
            num_proposed_tokens=self._propose(plan),
        )

    def computes(self, plan: StepPlan) -> list[Grant]:
        """The grants of a plan that `run` would compute: those of requests that are not lost."""
        known = self._rows.keys() | {start.engine_id for start in plan.starts}
        return [grant for grant in plan.grants if grant.engine_id in known]

    def crash(self, plan: StepPlan) -> None:
        """Simulate a step that raises: its requests are lost, and all slots that it writes are
        cleared.

        A plan that was made before the failure may still grant lost requests. Such grants are
        skipped.
        """
        self._begin(plan)
        for copies in plan.copies:
            self._spoil(copies)
        if plan.media is not None:
            self._encoder.follow(plan.media, fails=True)
        for grant in plan.grants:
            row = self._rows.pop(grant.engine_id, None)
            if row is not None:
                self._take_blocks(row, grant)
                end = grant.start + grant.num_tokens + grant.num_lookahead_tokens
                self._clear(row, grant.start, end)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _begin(self, plan: StepPlan) -> None:
        self._last_step = plan.step_id
        for engine_id in plan.ended:
            self._rows.pop(engine_id, None)
        begin = {grant.engine_id: grant.start for grant in plan.grants}
        for start in plan.starts:
            # Tokens before the grant are in its blocks already (prefix cache): only read them.
            known = self._encoder.known(start) if start.media else start.token_ids
            row = _Row(
                ReadOnlyList(known),
                start.seed,
                begin[start.engine_id],
                block_tables=[[] for _ in self.info.kv_windows],
                is_pooled=start.sampling_params.pooling is not None,
                start=start if start.media else None,
            )
            self._rows[start.engine_id] = row

    def _copy(self, copies: BlockCopies) -> None:
        size = self.info.block_size
        out = copies.direction is CopyDirection.OUT
        source, target = (self._slots, self._host_slots) if out else (self._host_slots, self._slots)
        for source_block, target_block in copies.pairs:
            block = source[source_block * size : (source_block + 1) * size]
            target[target_block * size : (target_block + 1) * size] = block
            if not out:  # a block that was swapped in must not be read again
                source[source_block * size : (source_block + 1) * size] = [EMPTY] * size

    def _spoil(self, copies: BlockCopies) -> None:
        size = self.info.block_size
        target = self._host_slots if copies.direction is CopyDirection.OUT else self._slots
        for _, block in copies.pairs:
            target[block * size : (block + 1) * size] = [EMPTY] * size

    def _write(self, grant: Grant) -> None:
        row = self._rows.get(grant.engine_id)
        if row is None:
            return  # lost in a crash
        assert grant.num_tokens > 0 and grant.start == row.num_computed, (
            "a plan must compute tokens in order, and once"
        )
        self._take_blocks(row, grant)
        end, num_slots = grant.start + grant.num_tokens, self._num_slots(row)
        assert end <= num_slots, "tokens are granted without blocks for them"
        assert len(row.drafts) >= grant.num_draft_tokens, "drafts are granted that nobody proposed"
        row.drafts = row.drafts[: grant.num_draft_tokens]  # the others are forgotten
        known = len(row.token_ids)
        assert not row.drafts or end == known + len(row.drafts), (
            "drafts come after the last known token"
        )
        tokens = [*row.token_ids, *row.drafts]
        assert end <= len(tokens), "more tokens are granted than are known"
        if row.start is not None:
            for position, value in self._encoder.rows(row.start, grant.start, end).items():
                tokens[position] = value
        for group in range(len(row.block_tables)):
            for position in range(grant.start, end):
                slot = self._slot(row, group, position)
                self._slots[slot] = (tokens[position], position, group)
        row.num_computed += grant.num_tokens

    def _take_blocks(self, row: _Row, grant: Grant) -> None:
        windows, none = self.info.kv_windows, [()] * len(self.info.kv_windows)
        first = grant.start + 1
        row.first_seen = [0 if w is None else max(0, first - w) for w in windows]
        passed = grant.num_passed_blocks or [0] * len(windows)
        held: list[int] = []
        for table, num_passed, new, seen in zip(
            row.block_tables, passed, grant.new_block_ids or none, row.first_seen, strict=True
        ):
            assert num_passed * self.info.block_size <= seen, "blocks are passed too early"
            table.extend([PASSED] * (num_passed - len(table)))  # a start behind the window
            table.extend(new)
            table[:num_passed] = [PASSED] * num_passed
            held += table[num_passed:]
        assert len({PASSED, *held}) == len(held) + 1, "a block stands twice in a table"

    def _check_windows(self, grant: Grant) -> None:
        """Check the slots of all tokens that the grant's tokens see."""
        row = self._rows.get(grant.engine_id)
        if row is None:
            return
        known = [*row.token_ids, *row.drafts]
        for group, first in enumerate(row.first_seen):
            seen = [(known[at], at, group) for at in range(first, row.num_computed)]
            assert self._read(row, group) == seen, "KV slots were overwritten"

    def _sample(self, grant: Grant) -> tuple[int, ...]:
        """Sample the accepted drafts and one more token."""
        row = self._rows.get(grant.engine_id)
        if row is None or not grant.samples:
            return ()
        first = len(row.token_ids)
        assert row.num_computed == first + len(row.drafts), (
            "a plan may only sample after the last known token"
        )
        tokens = [self._read_tokens(row, group) for group in range(len(row.block_tables))]
        for draft in (*row.drafts, None):
            known = len(row.token_ids)
            pairs = zip(tokens, row.first_seen, strict=True)
            histories = [seen[: known - begin] for seen, begin in pairs]
            token = self._choose(histories, row.seed)
            list.append(row.token_ids, token)
            if token != draft:
                break
        row.num_computed = len(row.token_ids) - 1
        row.drafts = ()
        return tuple(row.token_ids[first:])

    def _pool(self, grant: Grant) -> tuple[float, ...]:
        """The sum of the hidden states that the grant pools: a token, and its position plus 1."""
        row = self._rows.get(grant.engine_id)
        if row is None or not (row.is_pooled and grant.num_scored_tokens):
            return ()
        end = grant.scored_start + grant.num_scored_tokens
        places = [self._slot(row, 0, position) for position in range(grant.scored_start, end)]
        tokens, positions, _ = zip(*(self._slots[place] for place in places), strict=True)
        return (float(sum(tokens)), float(sum(positions) + len(positions)))

    def _propose(self, plan: StepPlan) -> tuple[int, ...] | None:
        """Make drafts for the next step, then drop blocks that the request does not need. Returns
        the number of drafts per grant; None without a speculator."""
        if self._drafting is None and self._asking is None:
            return None
        found = [(grant, self._rows.get(grant.engine_id)) for grant in plan.grants]
        pairs = [(grant, row) for grant, row in found if row is not None]
        for grant, row in pairs:
            self._write_lookahead(row, grant)
        drafts = self._drafts(pairs, plan.draft_token_budget)
        for grant, row in pairs:
            row.drafts = drafts.get(grant.engine_id, ())
            if grant.gives_back:
                num_tokens = len(row.token_ids) + len(row.drafts)
                for table in row.block_tables:
                    del table[-(-num_tokens // self.info.block_size) :]
        return tuple(0 if row is None else len(row.drafts) for _, row in found)

    def _drafts(
        self, pairs: Sequence[tuple[Grant, _Row]], token_budget: int
    ) -> Mapping[str, tuple[int, ...]]:
        if self._asking is not None:
            return self._asking.drafts([(g, row.token_ids) for g, row in pairs], token_budget)
        assert self._drafting is not None
        propose = self._drafting.propose
        return {g.engine_id: propose(r.token_ids, r.seed, g.max_draft_tokens) for g, r in pairs}

    def _write_lookahead(self, row: _Row, grant: Grant) -> None:
        """Overwrite the row's lookahead slots, as a draft model does."""
        if self._drafting is None or not self._drafting.settings.limits.needs_lookahead:
            return
        end = grant.start + grant.num_tokens
        assert grant.num_lookahead_tokens > grant.max_draft_tokens or not grant.max_draft_tokens, (
            "a plan asks for drafts without KV slots for them"
        )
        last = end + grant.num_lookahead_tokens
        assert last <= self._num_slots(row), "slots are promised without blocks"
        self._clear(row, end, last)

    def _next_token(self, history: Sequence[int], seed: int) -> int:
        return self._choose([history] * len(self.info.kv_windows), seed)

    def _choose(self, histories: Sequence[Sequence[int]], seed: int) -> int:
        """The next token, from the tokens that each group of layers sees."""
        return _hash(histories, seed, self.info.vocab_size, self.info.kv_windows)

    def _read_tokens(self, row: _Row, group: int) -> tuple[int, ...]:
        """The tokens that the last grant's tokens see in a group, from the slots."""
        tokens, positions, groups = zip(*self._read(row, group), strict=True)
        right = tuple(range(row.first_seen[group], row.num_computed))
        assert positions == right and set(groups) == {group}, "KV slots were overwritten"
        return tokens

    def _read(self, row: _Row, group: int) -> list[Slot]:
        """Every computed slot that the last grant's tokens see in a group, in order."""
        size, first = self.info.block_size, row.first_seen[group]
        first_block, skipped = divmod(first, size)
        found: list[Slot] = []
        for block in row.block_tables[group][first_block:]:
            found += self._slots[block * size : (block + 1) * size]
        return found[skipped : skipped + row.num_computed - first]

    def _clear(self, row: _Row, start: int, end: int) -> None:
        """Empty the slots of the positions from `start` to before `end`."""
        for group in range(len(row.block_tables)):
            for position in range(start, end):
                self._slots[self._slot(row, group, position)] = EMPTY

    def _num_slots(self, row: _Row) -> int:
        return min(map(len, row.block_tables)) * self.info.block_size

    def _slot(self, row: _Row, group: int, position: int) -> int:
        size = self.info.block_size
        return row.block_tables[group][position // size] * size + position % size
