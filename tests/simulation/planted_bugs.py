"""Bugs as somebody could write them, small changes of the core, to see if the net holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenmill.core.engine import (
    accepting,
    committing,
    draft_planning,
    planning,
    prefix_hits,
    step,
)
from tokenmill.core.engine.blocks import pool
from tokenmill.core.engine.blocks.pool import BlockPool, hash_block
from tokenmill.core.engine.committing import StepCommitter
from tokenmill.core.engine.draft_planning import DraftPlanner
from tokenmill.core.engine.engine_core import EngineCore
from tokenmill.core.engine.planning import OpenPlan, StepPlanner
from tokenmill.core.engine.prefix_hits import PrefixHit
from tokenmill.core.engine.queues import RequestQueues
from tokenmill.core.engine.request import PromptGroup, Request, RequestStatus
from tokenmill.core.engine.step import PendingGrant, PendingPreemption, Step
from tokenmill.core.engine.step_log.ledger import Ledger
from tokenmill.core.errors import RequestFailedError
from tokenmill.core.host.calling.hook_callers import Observers
from tokenmill.core.outputs import FinishReason
from tokenmill.core.plan import Grant
from tokenmill.testing.simulation import LifeSettings

from .planting import Bug, Planter
from .test_product import FAILING_SWAPS

BUGS: dict[str, Bug] = {}

COUNTS = "reference counts differ from the block tables"
OVERWRITTEN = "KV slots were overwritten"
TWICE = "a block stands twice in a table"
NO_ROOM = "has more tokens than its blocks hold"
NO_BLOCKS = "without blocks"
UNKNOWN = "more tokens are granted than are known"
NEVER_PROPOSED = "drafts are granted that nobody proposed"
TOO_MANY = "a grant computes more than is generated"
BUDGET = "the budget was not kept"
IDLE = "work, room, and nothing was planned"
WRONG = "got wrong tokens"
WRONG_PARENT = "a wrong parent"


def bug(
    *caught_as: str, settings: LifeSettings | None = None
) -> Callable[[Callable[[Planter], None]], Callable[[Planter], None]]:
    """Register a bug under its function's name, with the failures that count as its discovery."""

    def register(plant: Callable[[Planter], None]) -> Callable[[Planter], None]:
        BUGS[plant.__name__] = Bug(plant, caught_as, settings)
        return plant

    return register


@bug(COUNTS)
def sharing_does_not_count(patch: Planter) -> None:
    original = BlockPool.share

    def share(self: BlockPool, block: int) -> None:
        if not self._ref_counts[block]:
            original(self, block)

    patch.setattr(BlockPool, "share", share)


@bug(COUNTS)
def one_block_is_never_dropped(patch: Planter) -> None:
    original = BlockPool.drop
    patch.setattr(BlockPool, "drop", lambda self, blocks: original(self, list(blocks)[:-1]))


@bug(OVERWRITTEN, TWICE, WRONG_PARENT)
def the_hash_forgets_its_parent(patch: Planter) -> None:
    def forgetful(parent: bytes, token_ids: Sequence[int], media: bytes = b"") -> bytes:
        return hash_block(b"", token_ids, media)

    patch.setattr(pool, "hash_block", forgetful)


@bug(WRONG, OVERWRITTEN, WRONG_PARENT)
def the_hash_forgets_the_tokens_and_nobody_compares(patch: Planter) -> None:
    patch.setattr(
        pool, "hash_block", lambda parent, ids, media=b"": hash_block(parent, ids[:1], media)
    )
    key = pool._key
    patch.setattr(BlockPool, "find", lambda self, h, ids, g: self._by_hash.get(key(h, g)))


@bug(OVERWRITTEN)
def a_failed_step_publishes_its_blocks(patch: Planter) -> None:
    original = EngineCore.fail

    def fail(self: EngineCore, plan: Any, message: str, now: float) -> Any:
        opened = self._open[0]
        for grant, found in zip(plan.grants, opened.requests, strict=True):
            if found.status is RequestStatus.RUNNING:
                found.num_computed_tokens += grant.num_tokens
                accepting.publish(self.pool, found)
                found.num_computed_tokens -= grant.num_tokens
        return original(self, plan, message, now)

    patch.setattr(EngineCore, "fail", fail)


@bug(IDLE)
def a_whole_prompt_may_come_from_the_cache(patch: Planter) -> None:
    original = Step._find_hit

    def find_hit(self: Step, found: Request) -> PrefixHit:
        hit = original(self, found)
        size = self._pool.block_size
        if hit.num_tokens == found.num_tokens - size:
            chain = found.hashes_for(found.num_tokens // size, size)
            last = found.token_ids[-size:]
            each = [self._pool.find(chain[-1], last, g) for g in range(len(hit.block_ids))]
            if None not in each:
                pairs = zip(hit.block_ids, each, strict=True)
                return PrefixHit(found.num_tokens, [[*ids, block] for ids, block in pairs])
        return hit

    patch.setattr(Step, "_find_hit", find_hit)


@bug(UNKNOWN, NO_ROOM, BUDGET)
def a_chunk_is_one_token_too_long(patch: Planter) -> None:
    original = Step._bound
    patch.setattr(Step, "_bound", lambda self, *args: original(self, *args) + 1)


@bug("a plan may only sample after the last known token")
def a_chunk_inside_a_prompt_samples(patch: Planter) -> None:
    original = StepPlanner._grant

    def grant(self: StepPlanner, pending: Any) -> Any:
        made = original(self, pending)
        if made.samples:
            return made
        pending.request.num_inflight_samples += 1
        return type(made)(
            **{name: getattr(made, name) for name in made.__slots__ if name != "samples"},
            samples=True,
        )

    patch.setattr(StepPlanner, "_grant", grant)


@bug(BUDGET)
def the_budget_is_not_spent(patch: Planter) -> None:
    original = Step._grant

    def grant(self: Step, pending: Any) -> int:
        num_tokens = original(self, pending)
        self.budget += num_tokens
        return num_tokens

    patch.setattr(Step, "_grant", grant)


@bug("more sequences than allowed")
def too_many_sequences_start(patch: Planter) -> None:
    original = Step._may_start

    def may_start(self: Step, found: Request) -> bool:
        self._num_running -= 1
        try:
            return original(self, found)
        finally:
            self._num_running += 1

    patch.setattr(Step, "_may_start", may_start)


@bug(OVERWRITTEN)
def copies_in_go_before_copies_out(patch: Planter) -> None:
    """Seen where a step swaps out and in; the plan's order is reversed."""
    original = Step._swap_in

    def swap_in(self: Step, found: Request, blocks: Any, num_hits: Any) -> None:
        original(self, found, [list(reversed(ids)) for ids in blocks], num_hits)

    patch.setattr(Step, "_swap_in", swap_in)


@bug(OVERWRITTEN)
def the_last_partial_block_is_not_copied_out(patch: Planter) -> None:
    original = Step._take_out

    def take_out(self: Step, found: Request, mode: str, needy: Request) -> PendingPreemption:
        taken = original(self, found, mode, needy)
        if self.copies and taken.host_block_ids:
            last = self.copies[-1]
            self.copies[-1] = type(last)(direction=last.direction, pairs=last.pairs[:-1])
        return taken

    patch.setattr(Step, "_take_out", take_out)


@bug("ended for the fault of another request")
def a_failed_step_ends_all_of_its_requests(patch: Planter) -> None:
    def fail(self: StepCommitter, opened: OpenPlan, message: str, now: float) -> Any:
        for found in opened.swapped_out:
            self._distrust_host_copy(found)
            self._unpin(found)
        pairs = zip(opened.requests, opened.plan.grants, strict=True)
        return [
            self._fail(found, message, now) for found, grant in pairs if self._settle(found, grant)
        ]

    patch.setattr(StepCommitter, "fail", fail)


@bug("ended for the fault of another request")
def the_result_of_a_plan_counts_for_requests_that_were_taken_back(patch: Planter) -> None:
    original = StepCommitter._take_back

    def take_back(self: StepCommitter, found: Request) -> None:
        original(self, found)
        found.num_stale_plans = 0

    patch.setattr(StepCommitter, "_take_back", take_back)


@bug(OVERWRITTEN, settings=FAILING_SWAPS)
def a_failed_copy_is_trusted(patch: Planter) -> None:
    patch.setattr(StepCommitter, "_distrust_host_copy", lambda self, found: None)


@bug(COUNTS)
def host_blocks_are_never_given_back(patch: Planter) -> None:
    original = EngineCore._close_oldest

    def close_oldest(self: EngineCore, plan: Any) -> Any:
        self._open[0].freed_host_blocks.clear()
        return original(self, plan)

    patch.setattr(EngineCore, "_close_oldest", close_oldest)


@bug(COUNTS, "a cached block has no hash", "a block is in two states")
def rollback_forgets_the_last_change(patch: Planter) -> None:
    original = BlockPool.rollback

    def rollback(self: BlockPool) -> None:
        if self._journal:
            self._journal.pop()
        original(self)

    patch.setattr(BlockPool, "rollback", rollback)


@bug(COUNTS)
def rollback_is_skipped(patch: Planter) -> None:
    patch.setattr(BlockPool, "rollback", BlockPool.confirm)


@bug(NO_ROOM)
def an_abort_in_flight_releases_at_once(patch: Planter) -> None:
    def release(self: StepCommitter, found: Request) -> None:
        self.pool.drop(reversed(found.block_ids))
        found.tables.clear()
        if not found.num_open_plans:
            self.host_pool.drop(found.host_block_ids)
            found.host_block_ids.clear()
            self.queues.forget(found)

    patch.setattr(StepCommitter, "_release", release)


@bug(NO_ROOM)
def a_victim_may_be_in_an_open_plan(patch: Planter) -> None:
    original = Step._choose_victim

    def choose(self: Step, needy: Request) -> Any:
        victim = original(self, needy)
        if self.must_drain:
            self.must_drain = False
            return step.Victim(request=self.running[-1])
        return victim

    patch.setattr(Step, "_choose_victim", choose)


@bug("two plans in flight have a request in common")
def stages_compute_the_same_request(patch: Planter) -> None:
    original = Step.__init__

    def init(self: Step, *, num_stages: int, **given: Any) -> None:
        original(self, num_stages=1, **given)

    patch.setattr(Step, "__init__", init)


@bug(UNKNOWN, TOO_MANY, IDLE)
def siblings_do_not_wait_and_their_hashes_are_shared(patch: Planter) -> None:
    """Without waiting nothing is wrong but speed; with the leader's blocks taken early, much is."""

    def ready(self: RequestQueues) -> list[Request]:
        for found in self.waiting.values():
            group = found.group
            if group is not None and group.must_wait(found):
                leader = group.members[0]
                found.token_ids = leader.token_ids
        return list(self.waiting.values())

    patch.setattr(RequestQueues, "ready", ready)


@bug(IDLE)
def siblings_wait_for_a_leader_that_ended(patch: Planter) -> None:
    def must_wait(self: PromptGroup, found: Request) -> bool:
        leader = self.members[0]
        return found is not leader and leader.num_computed_tokens < leader.num_prompt_tokens

    patch.setattr(PromptGroup, "must_wait", must_wait)


@bug(IDLE)
def a_step_that_grants_nothing_is_accepted(patch: Planter) -> None:
    """The wake-up is lost: nobody asks again."""
    patch.setattr(planning, "decode_first", lambda step: None)


@bug("the waiting queue is wrong")
def a_preempted_request_is_not_queued_again(patch: Planter) -> None:
    original = RequestQueues.requeue

    def requeue(self: RequestQueues, found: Request) -> None:
        original(self, found)
        del self.waiting[found.engine_id]

    patch.setattr(RequestQueues, "requeue", requeue)


@bug(NO_ROOM)
def the_executor_keeps_a_preempted_requests_tokens(patch: Planter) -> None:
    original = StepPlanner._requeue

    def requeue(self: StepPlanner, preemption: PendingPreemption) -> None:
        original(self, preemption)
        preemption.request.num_computed_tokens = max(
            0, preemption.request.num_tokens - 1 if not preemption.host_block_ids else 0
        )

    patch.setattr(StepPlanner, "_requeue", requeue)


@bug("an update after the end")
def a_deadline_is_noticed_twice(patch: Planter) -> None:
    original = EngineCore.finish

    def finish(self: EngineCore, name: str, reason: FinishReason, now: float, **more: Any) -> None:
        original(self, name, reason, now, **more)
        if more.get("stop_reason") == "request_timeout":
            self._updates.append(self._updates[-1])

    patch.setattr(EngineCore, "finish", finish)


@bug("tokens after the stop are counted")
def a_stop_string_keeps_the_tokens_after_it(patch: Planter) -> None:
    original = EngineCore.finish

    def finish(self: EngineCore, name: str, reason: FinishReason, now: float, **more: Any) -> None:
        more.pop("num_tokens", None)
        original(self, name, reason, now, **more)

    patch.setattr(EngineCore, "finish", finish)


@bug(TOO_MANY, IDLE)
def one_token_too_many_is_generated(patch: Planter) -> None:
    original = accepting.check_end

    def check_end(found: Request, token_id: int, max_model_len: int) -> Any:
        if found.num_generated_tokens == found.max_tokens:
            return None, None
        return original(found, token_id, max_model_len)

    patch.setattr(accepting, "check_end", check_end)
    patch.setattr(
        Request,
        "num_uncomputed_tokens",
        property(
            lambda self: (
                len(self.token_ids)
                + self.num_inflight_samples
                - self.num_computed_tokens
                - self.num_inflight_tokens
            )
        ),
    )


@bug(COUNTS)
def a_step_that_is_over_still_grants(patch: Planter) -> None:
    patch.setattr(Step, "close", lambda self: None)


@bug("PlantedError")
def an_observer_s_exception_gets_out(patch: Planter) -> None:
    def call(self: Observers, *arguments: object) -> list[Any]:
        return [guard.call(*arguments) for guard in self.guards]

    patch.setattr(Observers, "__call__", call)


@bug("is in use", "a refused request is served")
def a_request_that_admission_fails_stays_queued(patch: Planter) -> None:
    original = EngineCore.add

    def add(self: EngineCore, requests: Sequence[Request], now: float) -> None:
        try:
            original(self, requests, now)
        except RequestFailedError:
            self._queues.add(requests[0])
            raise

    patch.setattr(EngineCore, "add", add)


@bug("a request is stuck")
def a_wait_is_never_woken_from(patch: Planter) -> None:
    original = EngineCore.plan

    def plan(self: EngineCore, now: float) -> Any:
        return None if self.wake_at is not None else original(self, now)

    patch.setattr(EngineCore, "plan", plan)


@bug(OVERWRITTEN, WRONG)
def rejected_drafts_are_published(patch: Planter) -> None:
    original = accepting.publish

    def publish(pool: BlockPool, found: Request) -> None:
        num_slots = min(map(len, found.tables), default=0) * pool.block_size
        kept, found.num_computed_tokens = (
            found.num_computed_tokens,
            min(found.num_tokens, num_slots),
        )
        try:
            original(pool, found)
        finally:
            found.num_computed_tokens = kept

    patch.setattr(committing, "publish", publish)


@bug(IDLE, NO_ROOM)
def rejected_drafts_count_as_computed(patch: Planter) -> None:
    original = accepting.accept

    def accept(found: Request, grant: Grant, token_ids: Sequence[int], most: int) -> Any:
        run = original(found, grant, token_ids, most)
        if token_ids:
            found.num_computed_tokens += 1 + grant.num_draft_tokens - len(token_ids)
        return run

    patch.setattr(committing, "accept", accept)


@bug("a plan must compute tokens in order, and once")
def accepted_drafts_do_not_count_as_computed(patch: Planter) -> None:
    original = accepting.accept

    def accept(found: Request, grant: Grant, token_ids: Sequence[int], most: int) -> Any:
        run = original(found, grant, token_ids, most)
        found.num_computed_tokens -= max(0, len(run.token_ids) - 1)
        return run

    patch.setattr(committing, "accept", accept)


@bug("did not end at its stop token")
def a_stop_inside_a_run_is_overlooked(patch: Planter) -> None:
    original = accepting.check_end
    patch.setattr(accepting, "check_end", lambda *args: (None, None))

    def accept(found: Request, grant: Grant, token_ids: Sequence[int], most: int) -> Any:
        run = accepting.accept(found, grant, token_ids, most)
        reason, stop = original(found, token_ids[-1], most) if token_ids else (None, None)
        return type(run)(token_ids=run.token_ids, finish_reason=reason, stop_reason=stop)

    patch.setattr(committing, "accept", accept)


@bug(NO_BLOCKS)
def blocks_of_rejected_drafts_are_not_given_back(patch: Planter) -> None:
    patch.setattr(committing, "give_back", lambda pool, found: None)


@bug(TWICE, OVERWRITTEN)
def blocks_of_proposed_drafts_are_given_back(patch: Planter) -> None:
    original = accepting.give_back

    def give_back(pool: BlockPool, found: Request) -> None:
        kept, found.num_proposed_tokens = found.num_proposed_tokens, 0
        original(pool, found)
        found.num_proposed_tokens = kept

    patch.setattr(committing, "give_back", give_back)


@bug("is not held")
def blocks_are_given_back_twice(patch: Planter) -> None:
    original = accepting.give_back

    def give_back(pool: BlockPool, found: Request) -> None:
        before = len(found.block_ids)
        given = found.block_ids
        original(pool, found)
        if len(found.block_ids) < before:
            pool.drop(given[-1:])

    patch.setattr(committing, "give_back", give_back)


@bug(NEVER_PROPOSED)
def drafts_are_taken_that_were_never_proposed(patch: Planter) -> None:
    original = draft_planning._num_ready

    def num_ready(pending: PendingGrant) -> int:
        return original(pending) + 1

    patch.setattr(draft_planning, "_num_ready", num_ready)


@bug(NEVER_PROPOSED)
def drafts_survive_a_preemption(patch: Planter) -> None:
    original = StepPlanner._requeue

    def requeue(self: StepPlanner, preemption: PendingPreemption) -> None:
        kept = preemption.request.num_proposed_tokens
        original(self, preemption)
        preemption.request.num_proposed_tokens = kept

    patch.setattr(StepPlanner, "_requeue", requeue)
    patch.setattr(
        draft_planning,
        "_num_ready",
        lambda p: 0 if p.request.num_inflight_tokens else p.request.num_proposed_tokens,
    )


@bug(NO_BLOCKS, OVERWRITTEN, TWICE)
def drafts_that_were_not_granted_are_granted_later(patch: Planter) -> None:
    original = StepPlanner._grant

    def grant(self: StepPlanner, pending: PendingGrant) -> Grant:
        kept = pending.request.num_proposed_tokens
        made = original(self, pending)
        pending.request.num_proposed_tokens = kept - pending.num_draft_tokens
        return made

    patch.setattr(StepPlanner, "_grant", grant)
    patch.setattr(OpenPlan, "must_be_awaited", property(lambda self: False))


@bug(NO_BLOCKS, OVERWRITTEN, TWICE)
def a_plan_runs_ahead_of_drafts(patch: Planter) -> None:
    patch.setattr(OpenPlan, "must_be_awaited", property(lambda self: False))


@bug("drafts exceed max_tokens")
def drafts_pass_max_tokens(patch: Planter) -> None:
    original = DraftPlanner._room
    patch.setattr(DraftPlanner, "_room", lambda self, pending: original(self, pending) + 1)


@bug(BUDGET)
def drafts_pass_the_budget(patch: Planter) -> None:
    original = Step.add_drafts

    def add_drafts(self: Step, pending: PendingGrant, num_tokens: int) -> None:
        budget, self.budget = self.budget, 10**6
        original(self, pending, num_tokens)
        self.budget = budget

    patch.setattr(Step, "add_drafts", add_drafts)


@bug("no block is left to give")
def drafts_take_blocks_that_are_not_there(patch: Planter) -> None:
    patch.setattr(Step, "_num_free_slots", lambda self, pending: 10**6)


@bug(NO_BLOCKS, NO_ROOM)
def drafts_come_without_their_blocks(patch: Planter) -> None:
    patch.setattr(Step, "_take_slots", lambda self, pending, num_tokens: None)


@bug(NO_ROOM)
def drafts_preempt(patch: Planter) -> None:
    original = Step._num_free_slots

    def num_free_slots(self: Step, pending: PendingGrant) -> int:
        for junior in self.running[1:]:
            if junior.engine_id not in self.grants and not self.preempted:
                self._preempt(step.Victim(request=junior), pending.request)
        return original(self, pending)

    patch.setattr(Step, "_num_free_slots", num_free_slots)


@bug("slots are promised without blocks")
def lookahead_is_one_slot_short(patch: Planter) -> None:
    original = Step._take_slots

    def take_slots(self: Step, pending: PendingGrant, num_tokens: int) -> None:
        original(self, pending, num_tokens - (pending.num_lookahead_tokens > 0))

    patch.setattr(Step, "_take_slots", take_slots)


@bug(COUNTS)
def drafts_of_a_dropped_step_keep_their_blocks(patch: Planter) -> None:
    original = StepPlanner._keep

    def keep(self: StepPlanner, decided: Step, succeeded: bool, **more: bool) -> bool:
        is_kept = original(self, decided, succeeded, **more)
        if not is_kept and self.drafts is not None:
            self.drafts.add_drafts(decided)
        return is_kept

    patch.setattr(StepPlanner, "_keep", keep)


@bug("wrong counts of drafts")
def acceptance_is_counted_as_all_of_the_draft(patch: Planter) -> None:
    original = DraftPlanner.take_in

    def take_in(self: DraftPlanner, *args: Any) -> None:
        original(self, *args)
        found, grant, result, row, _ = args
        found.num_accepted_tokens += grant.num_draft_tokens - max(0, len(result.token_ids[row]) - 1)

    patch.setattr(DraftPlanner, "take_in", take_in)


@bug("blocks are passed too early")
def blocks_are_passed_one_token_too_early(patch: Planter) -> None:
    original = BlockPool.num_passed_blocks
    patch.setattr(BlockPool, "num_passed_blocks", lambda self, n: original(self, n + 1))


@bug("other blocks than those in its window")
def a_step_in_flight_counts_as_computed_for_the_window(patch: Planter) -> None:
    original = accepting.drop_passed

    def drop_passed(pool: BlockPool, found: Request) -> None:
        found.num_computed_tokens += found.num_inflight_tokens
        original(pool, found)
        found.num_computed_tokens -= found.num_inflight_tokens

    patch.setattr(committing, "drop_passed", drop_passed)


@bug("other blocks than those in its window")
def passed_blocks_are_kept(patch: Planter) -> None:
    patch.setattr(committing, "drop_passed", lambda pool, found: None)


@bug(OVERWRITTEN)
def blocks_are_published_as_if_none_was_passed(patch: Planter) -> None:
    def publish(pool: BlockPool, found: Request) -> None:
        size, first = pool.block_size, found.num_published_blocks
        if found.publishes:
            hashes = found.hashes_for(found.num_computed_tokens // size, size)
            for group, table in enumerate(found.tables):
                for i in range(first, min(len(hashes), len(table.block_ids))):
                    tokens = found.token_ids[i * size : (i + 1) * size]
                    pool.publish(table.block_ids[i], hashes[i], tokens, group)
            found.num_published_blocks = max(first, len(hashes))

    patch.setattr(committing, "publish", publish)


@bug(OVERWRITTEN, TWICE)
def groups_of_layers_share_cached_blocks(patch: Planter) -> None:
    patch.setattr(pool, "_key", lambda block_hash, group: block_hash)


@bug(OVERWRITTEN, TWICE, WRONG)
def a_hit_needs_only_the_blocks_without_a_window(patch: Planter) -> None:
    patch.setattr(prefix_hits, "_last_missing", lambda pool, find, end: None)


@bug(NO_BLOCKS, NO_ROOM, TWICE)
def only_the_first_table_grows(patch: Planter) -> None:
    original = Step._extend

    def extend(self: Step, found: Request, max_tokens: int | None) -> int:
        granted = original(self, found, max_tokens)
        if granted:
            for block_ids in self.grants[found.engine_id].new_block_ids[1:]:
                self._pool.drop(block_ids)
                block_ids.clear()
        return granted

    patch.setattr(Step, "_extend", extend)


@bug(OVERWRITTEN, TWICE)
def a_hit_lacks_the_first_block_of_its_window(patch: Planter) -> None:
    original = Step._find_hit

    def find_hit(self: Step, found: Request) -> PrefixHit:
        hit = original(self, found)
        passed = self._pool.num_passed_blocks(hit.num_tokens)
        pairs = zip(passed, hit.block_ids, strict=True)
        return hit._replace(block_ids=[ids[1:] if n else ids for n, ids in pairs])

    patch.setattr(Step, "_find_hit", find_hit)


@bug(NO_ROOM, NO_BLOCKS, IDLE)
def a_window_and_a_chunk_hold_one_block_less(patch: Planter) -> None:
    original = pool.max_blocks_held

    def max_blocks_held(num_tokens: int, **shape: Any) -> int:
        return original(num_tokens, **shape) - (shape["window"] is not None)

    patch.setattr(pool, "max_blocks_held", max_blocks_held)


@bug("its parts add up to")
def the_time_behind_another_request_is_lost(patch: Planter) -> None:
    patch.setattr(Ledger, "_settle_queue", lambda self, seconds, now: None)


@bug("its parts add up to")
def the_time_after_a_preemption_counts_twice(patch: Planter) -> None:
    original = Ledger.recover

    def recover(self: Ledger, now: float) -> None:
        since = self.since
        original(self, now)
        self.since = since

    patch.setattr(Ledger, "recover", recover)
