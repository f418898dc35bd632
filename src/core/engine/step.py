"""A step while it is being decided: a transaction over the block pool.

Requests do not change here. A step records grants and preemptions, and the pool records its changes
in a journal. The engine then applies the whole step or drops the whole step, so a policy that fails
half-way does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from ..contract.explanation import Limit
from ..contract.policy import PreemptionCandidate, RequestView, StepView, Victim
from ..plan import BlockCopies, CopyDirection
from ..requests.media import before_span, cover_spans
from .blocks.pool import BlockPool
from .media import MediaPool, MediaStep
from .prefix_hits import PrefixHit, find_prefix, no_hit
from .read_only import ReadOnlyStep
from .request import Request, RequestStatus

MAX_WAIT = 1.0
"""Maximum time between two steps for which a policy may postpone the second one, in seconds."""

PreemptHook = Callable[[StepView, RequestView, tuple[PreemptionCandidate, ...]], Victim | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The engine's bounds on every step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    watermark_blocks: int
    """Number of blocks that a newly started request must leave available while others run."""
    enable_prefix_caching: bool
    max_num_scored_tokens: int = 1024
    """Maximum number of prompt tokens whose log-probabilities are computed in one step. Each needs
    a row of logits, in addition to the rows that are sampled."""


@dataclass(slots=True, eq=False)
class PendingGrant:
    """A grant of the step that is being decided; not applied yet."""

    request: Request
    num_tokens: int
    new_block_ids: list[list[int]]
    """Per group of layers. Empty: none in any group."""
    num_hit_tokens: int = 0
    """Tokens that a starting request found in the prefix cache."""
    start: int = 0
    """Tokens of a starting request that need no computing: found in the cache, or swapped in."""
    num_passed_blocks: tuple[int, ...] = ()
    """Per group, the number of blocks of a starting request that the window has passed. It gets
    none for them."""
    is_start: bool = False
    samples: bool = False
    """Whether the grant reaches the last known token."""
    num_draft_tokens: int = 0
    """Draft tokens to verify, in addition to `num_tokens`."""
    max_draft_tokens: int = 0
    num_lookahead_tokens: int = 0
    encoding_cost: int = 0
    """Tokens of the budget that encoding its images takes."""

    @property
    def begin(self) -> int:
        """Position of the first token that the grant computes."""
        if self.is_start:
            return self.start
        return self.request.num_computed_tokens + self.request.num_inflight_tokens

    @property
    def end(self) -> int:
        """Position after the last token that the grant computes."""
        return self.begin + self.num_tokens + self.num_draft_tokens

    @property
    def scored(self) -> range:
        """The positions whose logits score the prompt token after them."""
        return self.request.scored_range(self.begin, self.begin + self.num_tokens)

    @property
    def table_lens(self) -> list[int]:
        """Per group, the length of the request's block table including this grant."""
        if self.is_start:
            lens = list(self.num_passed_blocks)
        else:
            lens = [len(table) for table in self.request.tables]
        if not self.new_block_ids:
            return lens
        return [n + len(new) for n, new in zip(lens, self.new_block_ids, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class PendingPreemption:
    """A preemption of the step that is being decided; not applied yet."""

    request: Request
    mode: str
    needy: Request
    """The request that needs the blocks."""
    num_computed_tokens: int
    fell_back: bool = False
    host_block_ids: tuple[int, ...] = ()


class Step:
    """The step whose view schedulers get."""

    def __init__(
        self,
        *,
        now: float,
        running: Sequence[Request],
        waiting: Sequence[Request],
        pool: BlockPool,
        host_pool: BlockPool,
        limits: StepLimits,
        preempt: PreemptHook,
        starving: Request | None = None,
        num_stages: int = 1,
        left_out: Limit = Limit.NOT_OFFERED,
        media: MediaPool | None = None,
    ) -> None:
        """`num_stages`: with several, requests of open plans get no grant, and the others are
        divided among the plans that the stages compute at the same time. `left_out`: why waiting
        requests that are not refused get no grant."""
        self.now = now
        self._running = running
        self._num_candidates = len(running) + len(waiting)
        self._max_num_grants = self._num_candidates
        if num_stages > 1:
            self._max_num_grants = -(-min(self._num_candidates, limits.max_num_seqs) // num_stages)
            running = [r for r in running if not r.num_open_plans]
        self._members: dict[RequestView, Request] = {r.view: r for r in (*running, *waiting)}
        views = tuple(self._members)
        self.running, self.waiting = views[: len(running)], views[len(running) :]
        self.budget = limits.max_num_batched_tokens
        self._scoring_budget = limits.max_num_scored_tokens
        self.grants: dict[str, PendingGrant] = {}
        self.preempted: dict[str, PendingPreemption] = {}
        self.copies: list[BlockCopies] = []
        self.wake_at: float | None = None
        self.must_drain = False
        """Whether a request that should be preempted is in an open plan. Then the engine drops this
        step and decides again after the plan's commit."""
        self.media = None if media is None else MediaStep(media)
        self._encoding_cost = 0
        self._pool = pool
        self._host_pool = host_pool
        self._limits = limits
        self._preempt_hook = preempt
        self.starving = starving
        self.left_out = left_out
        self.refusals: dict[str, Limit] = {}
        """By engine id, the first limit that stopped a request; requests that got a grant later in
        the step are among them."""
        self._token_limits: dict[str, int] = {}
        self._num_running = len(self._running)
        self._claims = {r.rank for r in waiting if r.is_preempted}
        self._is_open = True
        self.view = ReadOnlyStep(self)

    @property
    def num_granted(self) -> int:
        return len(self.grants)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the grants compute, with drafts."""
        return self._limits.max_num_batched_tokens - self.budget - self._encoding_cost

    def is_candidate(self, request: Request) -> bool:
        """Whether the scheduler could offer this request."""
        return request.view in self._members

    def close(self) -> None:
        """Make every further call grant 0, because a policy may have kept the step."""
        self._is_open = False
        # Step and view refer to each other. There is a step every few milliseconds, and without
        # this only the garbage collector would free them.
        del self.view

    def limit(self, request: RequestView, max_tokens: int) -> None:
        known = self._token_limits.get(request.engine_id, max_tokens)
        self._token_limits[request.engine_id] = min(known, max_tokens)

    def wait_until(self, time: float) -> None:
        self.wake_at = min(time, self.now + MAX_WAIT)

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> int:
        member = self._members.get(request)
        if member is None or not self._may_grant(member):
            return 0
        if member.status is RequestStatus.RUNNING:
            return self._extend(member, max_tokens)
        return self._start(member, max_tokens)

    def add_drafts(self, pending: PendingGrant, num_tokens: int) -> None:
        """Let a grant verify up to `num_tokens` drafts.

        Drafts use only the budget and blocks that are left, and preempt no request.
        """
        limit = self._token_limits.get(pending.request.engine_id, self.budget + pending.num_tokens)
        room = min(self.budget, limit - pending.num_tokens, self._num_free_slots(pending))
        num_tokens = max(0, min(num_tokens, room))
        self._take_slots(pending, num_tokens)
        pending.num_draft_tokens = num_tokens
        self.budget -= num_tokens

    def ask_for_drafts(self, pending: PendingGrant, num_tokens: int, *, lookahead: bool) -> None:
        """Have up to `num_tokens` drafts proposed for a request after this step.

        With `lookahead` each draft token needs a KV slot behind the grant, and one more slot is
        needed in all. If there are too few free slots, fewer drafts are asked for.
        """
        if lookahead:
            num_tokens = max(0, min(num_tokens, self._num_free_slots(pending) - 1))
            pending.num_lookahead_tokens = num_tokens + 1 if num_tokens else 0
            self._take_slots(pending, pending.num_lookahead_tokens)
        pending.max_draft_tokens = num_tokens

    def _num_free_slots(self, pending: PendingGrant) -> int:
        """KV slots behind a grant that drafts may use without a disadvantage for other requests.

        They are in the grant's own last blocks, and in blocks available beyond the watermark. After
        a preemption the available blocks are left to the preempted requests.
        """
        blocks = 0 if self.preempted else max(0, self._pool.num_available - self._watermark())
        lens = pending.table_lens
        return (min(lens) + blocks // len(lens)) * self._pool.block_size - pending.end

    def _take_slots(self, pending: PendingGrant, num_tokens: int) -> None:
        needed = self._pool.num_blocks_for(pending.end + num_tokens)
        lens = pending.table_lens
        if needed <= min(lens):
            return
        pending.new_block_ids = pending.new_block_ids or [[] for _ in lens]
        for block_ids, table_len in zip(pending.new_block_ids, lens, strict=True):
            block_ids += self._take(needed - table_len)

    def _take(self, num_blocks: int) -> list[int]:
        return [self._pool.take() for _ in range(num_blocks)]

    def _may_grant(self, request: Request) -> bool:
        if (
            not self._is_open
            or self.must_drain
            or request.engine_id in self.grants
            or request.engine_id in self.preempted
            or request.status is RequestStatus.FINISHED
        ):
            return False
        if self.budget <= 0:
            return self._refuse(request, Limit.BUDGET)
        if len(self.grants) >= self._max_num_grants:
            return self._refuse(request, Limit.STAGE)
        return True

    def _refuse(self, request: Request, limit: Limit) -> bool:
        """Note what stopped a request, unless it was stopped before. False, for the caller."""
        self.refusals.setdefault(request.engine_id, limit)
        return False

    def _bound(self, request: Request, start: int, uncomputed: int, max_tokens: int | None) -> int:
        bound: float = min(uncomputed, self.budget)  # a policy may pass a fraction
        if self._token_limits:
            bound = min(bound, self._token_limits.get(request.engine_id, bound))
        if max_tokens is not None:
            bound = min(bound, max_tokens)
        if self._limits.long_prefill_token_threshold and self._num_candidates > 1:
            bound = min(bound, self._limits.long_prefill_token_threshold)
        num_tokens = max(0, int(bound))
        if not num_tokens:
            if uncomputed:
                self._refuse(request, Limit.PLUGIN)
            return 0
        if self.media is not None and request.media:
            num_tokens = self._reach(self.media, request, start, num_tokens)
            if not num_tokens:
                return 0
        if request.scores_prompt:
            num_tokens = self._scorable(request, start, num_tokens)
            if not num_tokens:
                self._refuse(request, Limit.SCORED)
        return num_tokens

    def _reach(self, media: MediaStep, request: Request, start: int, num_tokens: int) -> int:
        """The number of tokens from `start` on that a grant can have with the images among them.

        They are more than `num_tokens` if a span comes first that is longer: a policy may offer
        less than a span, and it must be computed nevertheless.
        """
        num_tokens = cover_spans(request.media, start, num_tokens, self.budget)
        if not num_tokens:
            self._refuse(request, Limit.SPAN)
            return 0
        num_tokens = media.reach(request, start, num_tokens, self.budget)
        if not num_tokens:
            self._refuse(request, Limit.MEDIA)
        return num_tokens

    def _scorable(self, request: Request, start: int, num_tokens: int) -> int:
        """The number of tokens from `start` on, at most `num_tokens`, that this step may compute,
        given that it scores them."""
        scored = request.scored_range(start, start + num_tokens)
        if len(scored) <= self._scoring_budget:
            return num_tokens
        return before_span(request.media, scored.start + self._scoring_budget) - start

    def _extend(self, request: Request, max_tokens: int | None) -> int:
        uncomputed = request.num_uncomputed_tokens
        start = request.num_computed_tokens + request.num_inflight_tokens
        num_tokens = self._bound(request, start, uncomputed, max_tokens)
        if not num_tokens:
            return 0
        needed = self._pool.num_blocks_for(start + num_tokens)
        missing = [needed - len(table.block_ids) - table.num_passed for table in request.tables]
        blocks: list[list[int]] = []
        if max(missing) > 0:
            if not self._make_room(request, sum(count for count in missing if count > 0)):
                self._refuse(request, Limit.BLOCKS)
                return 0
            blocks = [self._take(count) for count in missing]
        samples = num_tokens == uncomputed and request.max_tokens > 0
        return self._grant(PendingGrant(request, num_tokens, blocks, samples=samples))

    def _start(self, request: Request, max_tokens: int | None) -> int:
        if not self._may_start(request):
            return 0
        hit = self._find_hit(request)
        start = max(hit.num_tokens, request.num_computed_tokens if request.is_swapped else 0)
        uncomputed = request.num_tokens - start
        num_tokens = self._bound(request, start, uncomputed, max_tokens)
        if not num_tokens:
            return 0
        num_passed = self._pool.num_passed_blocks(start)
        hits = self._hits_at_start(hit, num_passed)
        missing = [
            needed - len(ids)
            for needed, ids in zip(self._blocks_at_start(request, num_passed), hits, strict=True)
        ]
        shared = list(chain.from_iterable(hits))
        for block in shared:
            self._pool.share(block)  # first, so that making room cannot evict them
        if not self._make_room(request, sum(missing) + self._watermark()):
            has_room = self._pool.num_available >= sum(missing)
            self._pool.drop(reversed(shared))
            self._refuse(request, Limit.WATERMARK if has_room else Limit.BLOCKS)
            return 0
        blocks = [[*ids, *self._take(count)] for ids, count in zip(hits, missing, strict=True)]
        if start > hit.num_tokens:
            self._swap_in(request, blocks, [len(ids) for ids in hits])
        self._num_running += 1
        self._claims.discard(request.rank)
        return self._grant(
            PendingGrant(
                request,
                num_tokens,
                blocks,
                num_hit_tokens=hit.num_tokens,
                start=start,
                num_passed_blocks=num_passed,
                is_start=True,
                samples=num_tokens == uncomputed and request.max_tokens > 0,
            )
        )

    def _hits_at_start(self, hit: PrefixHit, num_passed: Sequence[int]) -> Sequence[Sequence[int]]:
        """Per group, the cached blocks that the window has not passed at the start."""
        at_hit = self._pool.num_passed_blocks(hit.num_tokens)
        each = zip(hit.block_ids, num_passed, at_hit, strict=True)
        return [ids[now - then :] for ids, now, then in each]

    def _blocks_at_start(self, request: Request, num_passed: Sequence[int]) -> list[int]:
        """Per group, the number of blocks for all known tokens, or the maximum that it holds at one
        time.

        So a started request does not compete with others for the rest of its prompt.
        """
        most = self._pool.max_blocks_held(request.num_tokens, self._limits.max_num_batched_tokens)
        num_blocks = self._pool.num_blocks_for(request.num_tokens)
        return [min(num_blocks - n, held) for n, held in zip(num_passed, most, strict=True)]

    def _swap_in(
        self, request: Request, blocks: Sequence[Sequence[int]], num_hits: Sequence[int]
    ) -> None:
        """Copy the blocks that the prefix cache lacks from the host. The last may be partial."""
        end = self._pool.num_blocks_for(request.num_computed_tokens)
        passed = self._pool.num_passed_blocks(request.num_computed_tokens)
        hosted = iter(request.host_block_ids)
        pairs: list[tuple[int, int]] = []
        for targets, found, num_passed in zip(blocks, num_hits, passed, strict=True):
            sources = islice(hosted, end - num_passed)
            pairs += [*zip(sources, targets, strict=False)][found:]
        if pairs:
            self.copies.append(BlockCopies(direction=CopyDirection.IN, pairs=tuple(pairs)))

    def _may_start(self, request: Request) -> bool:
        if self.preempted:
            return self._refuse(request, Limit.BLOCKS)
        if self._num_running >= self._limits.max_num_seqs:
            return self._refuse(request, Limit.SEQUENCES)
        if request.num_open_plans:
            return self._refuse(request, Limit.SWAPPING)
        if self._claims and not request.is_preempted and request.rank > min(self._claims):
            return self._refuse(request, Limit.SENIOR)  # a preempted one comes back first
        starving = self.starving
        if starving is None or request is starving or request.rank < starving.rank:
            return True
        return self._refuse(request, Limit.SENIOR)

    def _watermark(self) -> int:
        return self._limits.watermark_blocks if self._num_running else 0

    def _find_hit(self, request: Request) -> PrefixHit:
        if not self._limits.enable_prefix_caching and request.group is None:
            return no_hit(self._pool)
        if not request.may_skip_prompt:
            return no_hit(self._pool)  # cached blocks hold no logits and no hidden states
        return find_prefix(self._pool, request)

    def _make_room(self, needy: Request, num_blocks: int) -> bool:
        if needy.status is RequestStatus.WAITING and not self._could_make_room(needy, num_blocks):
            return False
        while self._pool.num_available < num_blocks:
            victim = self._choose_victim(needy)
            if victim is None:
                return False
            self._preempt(victim, needy)
            if victim.request is needy.view:
                return False
        return True

    def _could_make_room(self, needy: Request, num_blocks: int) -> bool:
        """Whether preemption can free enough blocks. If not, a waiting request preempts nobody."""
        missing = num_blocks - self._pool.num_available
        if missing <= 0:
            return True
        junior = [r for r in self._running if self._may_go(r, needy)]
        return sum(self._candidate(r, needy).num_freed_blocks for r in junior) >= missing

    def _choose_victim(self, needy: Request) -> Victim | None:
        junior = [r for r in self._running if self._may_go(r, needy)]
        if any(r.num_open_plans for r in junior):
            self.must_drain = True
            return None
        if not junior or (len(junior) == 1 and junior[0] is needy and self._is_alone(needy)):
            return None
        candidates = tuple(self._candidate(r, needy) for r in junior)
        victim = self._preempt_hook(self.view, needy.view, candidates)
        if victim is not None and not any(victim.request is c.request for c in candidates):
            return None
        return victim

    def _may_go(self, request: Request, needy: Request) -> bool:
        """Whether a running request may be preempted for `needy`.

        For a running `needy` it must be junior, or `needy` itself, and have no grant in this step.
        For a waiting `needy` it must have a lower priority; then it may have a grant.
        """
        if not request.tables or request.engine_id in self.preempted:
            return False
        if needy.status is RequestStatus.WAITING:
            return request.priority > needy.priority
        return request.rank >= needy.rank and request.engine_id not in self.grants

    def _is_alone(self, needy: Request) -> bool:
        return self._num_running == 1 and not self.preempted

    def _candidate(self, request: Request, needy: Request) -> PreemptionCandidate:
        freed = sum(not self._pool.is_shared(b) for b in request.block_ids)
        return PreemptionCandidate(
            request=request.view, num_freed_blocks=freed, is_needy=request is needy
        )

    def _preempt(self, victim: Victim, needy: Request) -> None:
        request = self._members[victim.request]
        given_back = self.grants.pop(request.engine_id, None)
        if given_back is not None:
            self.budget += given_back.num_tokens
            self._give_back_media(given_back)
            self._scoring_budget += len(given_back.scored)
            self._pool.drop(reversed([*chain.from_iterable(given_back.new_block_ids)]))
        self.preempted[request.engine_id] = self._take_out(request, victim.mode, needy)
        self._pool.drop(reversed(request.block_ids))
        self._num_running -= 1

    def _give_back_media(self, grant: PendingGrant) -> None:
        if self.media is None:
            return
        cost = min(grant.encoding_cost, self.media.give_back(grant.request))
        self.budget += cost
        self._encoding_cost -= cost

    def _take_out(self, request: Request, mode: str, needy: Request) -> PendingPreemption:
        """For "swap", plan to copy the computed blocks to the host, if they fit there."""
        end = self._pool.num_blocks_for(request.num_computed_tokens)
        computed = [b for t in request.tables for b in t.block_ids[: end - t.num_passed]]
        num_tokens = request.num_computed_tokens
        if mode != "swap" or not computed:
            return PendingPreemption(request, "recompute", needy, num_tokens)
        if self._host_pool.num_available < len(computed):
            return PendingPreemption(request, "recompute", needy, num_tokens, fell_back=True)
        host_blocks = tuple(self._host_pool.take() for _ in computed)
        pairs = tuple(zip(computed, host_blocks, strict=True))
        self.copies.append(BlockCopies(direction=CopyDirection.OUT, pairs=pairs))
        return PendingPreemption(request, "swap", needy, num_tokens, host_block_ids=host_blocks)

    def _grant(self, grant: PendingGrant) -> int:
        self.grants[grant.request.engine_id] = grant
        self.budget -= grant.num_tokens
        if self.media is not None and grant.request.media:
            cost = self.media.take(grant.request, grant.begin, grant.begin + grant.num_tokens)
            grant.encoding_cost = min(cost, self.budget)
            self.budget -= grant.encoding_cost
            self._encoding_cost += grant.encoding_cost
        if grant.request.scores_prompt:
            self._scoring_budget -= len(grant.scored)
        return grant.num_tokens
