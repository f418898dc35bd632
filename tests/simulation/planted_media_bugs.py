"""Bugs of the encoder cache as somebody could write them, for lives whose prompts have images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tokenmill.core.engine import media, planning, prefix_hits, step
from tokenmill.core.engine.blocks import pool
from tokenmill.core.engine.committing import StepCommitter
from tokenmill.core.engine.media import MediaPool, MediaStep
from tokenmill.core.engine.planning import StepPlanner
from tokenmill.core.engine.request import Request
from tokenmill.core.engine.step import Step
from tokenmill.core.plan import MediaPlace, MediaWork
from tokenmill.core.requests.media import MediaItem, before_span, cover_spans
from tokenmill.testing.simulation.settings import ENOUGH_TOKENS

from .planted_bugs import BUDGET, BUGS, IDLE, OVERWRITTEN, TWICE, WRONG
from .planting import Bug, Planter

MEDIA_BUGS: dict[str, Bug] = {}
HOLDERS = "the holders of items are out of step"
NOT_ENCODED = "an item is not encoded"
NO_PIXELS = "an item is encoded without its pixels"
TOO_FULL = "the encoder cache is too full"
STUCK = "a request is stuck, although faults have ended"
CUT = "a grant ends inside a span"
BEGUN = "a grant begins inside a span"
WOULD_BEGIN = "a grant would begin inside a span"


def bug(*caught_as: str) -> Callable[[Callable[[Planter], None]], Callable[[Planter], None]]:
    """Register a bug under its function's name, with the failures that count as its discovery."""

    def register(plant: Callable[[Planter], None]) -> Callable[[Planter], None]:
        MEDIA_BUGS[plant.__name__] = Bug(plant, caught_as, needs_images=True)
        return plant

    return register


@bug(HOLDERS)
def a_preempted_request_keeps_its_items(patch: Planter) -> None:
    def let_go(self: MediaPool, request: Request) -> None:
        request.num_passed_items = request.num_granted_items = 0

    patch.setattr(MediaPool, "let_go", let_go)


@bug(HOLDERS, NOT_ENCODED, "an item is lost")
def an_item_goes_one_token_too_early(patch: Planter) -> None:
    def drop_passed(self: MediaPool, request: Request) -> None:
        for item in request.held_items:
            if item.end > request.num_computed_tokens + 1:
                break
            self._drop(item.digest)
            request.num_passed_items += 1

    patch.setattr(MediaPool, "drop_passed", drop_passed)


@bug(NOT_ENCODED, "KeyError")
def held_items_may_be_evicted(patch: Planter) -> None:
    patch.setattr(MediaPool, "idle", property(lambda self: self._sizes.keys()))


@bug(WRONG, OVERWRITTEN)
def an_item_stands_one_token_further(patch: Planter) -> None:
    original = planning._place

    def place(item: MediaItem) -> MediaPlace:
        return replace(original(item), start=item.start + 1)

    patch.setattr(planning, "_place", place)


@bug(WRONG, OVERWRITTEN, TWICE, "a wrong parent")
def the_hash_forgets_the_images(patch: Planter) -> None:
    patch.setattr(pool, "media_in", lambda items, start, end: b"")


@bug(NO_PIXELS, "KeyError")
def pixels_are_released_with_the_item(patch: Planter) -> None:
    original = MediaPool.let_go

    def let_go(self: MediaPool, request: Request) -> None:
        for item in request.held_items:
            self._release[item.digest] = None
        original(self, request)

    patch.setattr(MediaPool, "let_go", let_go)


@bug("the pixels are counted wrong", "KeyError")
def choices_count_once(patch: Planter) -> None:
    original = MediaPool.add
    patch.setattr(MediaPool, "add", lambda self, requests: original(self, requests[:1]))


@bug(NOT_ENCODED)
def a_failed_step_counts_as_encoded(patch: Planter) -> None:
    patch.setattr(MediaPool, "fail", lambda self, work: self.commit(work))


@bug(NOT_ENCODED)
def another_request_relies_on_an_open_plan(patch: Planter) -> None:
    patch.setattr(MediaPool, "is_usable", lambda self, digest, request: True)


@bug(BUDGET)
def encoding_costs_nothing(patch: Planter) -> None:
    original = MediaStep.take

    def take(self: MediaStep, request: Request, start: int, end: int) -> int:
        original(self, request, start, end)
        return 0

    patch.setattr(MediaStep, "take", take)


@bug("`reach` has found room")
def the_room_is_not_looked_at(patch: Planter) -> None:
    patch.setattr(MediaStep, "_room", lambda self: 1 << 40)


@bug(TOO_FULL, IDLE)
def the_executor_is_not_told_what_to_evict(patch: Planter) -> None:
    original = MediaPool.apply

    def apply(self: MediaPool, step: MediaStep) -> MediaWork | None:
        work = original(self, step)
        return None if work is None else replace(work, evict=())

    patch.setattr(MediaPool, "apply", apply)


@bug(NOT_ENCODED)
def a_cached_beginning_counts_as_the_whole_image(patch: Planter) -> None:
    def first_item(request: Request, start: int) -> int:
        first = request.num_granted_items
        while first < len(request.media) and request.media[first].start < start:
            first += 1
        return first

    patch.setattr(media, "first_item", first_item)


@bug(IDLE, STUCK)
def an_item_that_costs_more_than_the_budget_waits_forever(patch: Planter) -> None:
    original = MediaStep.reach

    def reach(self: MediaStep, request: Request, start: int, num_tokens: int, budget: int) -> int:
        self.encoded.setdefault(b"", 0)
        try:
            return original(self, request, start, num_tokens, budget)
        finally:
            del self.encoded[b""]

    patch.setattr(MediaStep, "reach", reach)


@bug(HOLDERS, NOT_ENCODED, IDLE, BUDGET, "an item is lost")
def a_grant_that_is_taken_back_still_encodes(patch: Planter) -> None:
    patch.setattr(MediaStep, "give_back", lambda self, request: 0)


@bug("a held item may be evicted")
def an_aborted_request_lets_go_twice(patch: Planter) -> None:
    original = StepCommitter.end

    def end(self: StepCommitter, request: Request, *arguments: Any) -> None:
        held: Iterable[MediaItem] = list(request.held_items)
        original(self, request, *arguments)
        for item in held:
            assert self.media is not None
            self.media._idle[item.digest] = None

    patch.setattr(StepCommitter, "end", end)


@bug(HOLDERS)
def a_repeated_request_keeps_its_items(patch: Planter) -> None:
    original = StepCommitter._take_back

    def take_back(self: StepCommitter, request: Request) -> None:
        kept, self.media = self.media, None
        original(self, request)
        self.media = kept
        request.num_passed_items = request.num_granted_items = 0

    patch.setattr(StepCommitter, "_take_back", take_back)


@bug(HOLDERS)
def a_preempted_request_starts_with_what_it_had(patch: Planter) -> None:
    original = StepPlanner._requeue

    def requeue(self: StepPlanner, preemption: Any) -> None:
        granted = preemption.request.num_granted_items
        original(self, preemption)
        preemption.request.num_granted_items = granted

    patch.setattr(StepPlanner, "_requeue", requeue)


# Spans


@bug(IDLE, STUCK)
def a_policy_that_offers_less_than_a_span_stops_the_request(patch: Planter) -> None:
    def cover(items: Sequence[MediaItem], start: int, num_tokens: int, budget: int) -> int:
        return before_span(items, start + num_tokens) - start

    patch.setattr(step, "cover_spans", cover)


@bug(BUDGET)
def a_span_is_granted_whatever_is_left(patch: Planter) -> None:
    def reach(self: Step, media: MediaStep, request: Request, start: int, num_tokens: int) -> int:
        whole = cover_spans(request.media, start, num_tokens, ENOUGH_TOKENS)
        return media.reach(request, start, whole, ENOUGH_TOKENS)

    patch.setattr(Step, "_reach", reach)


@bug(CUT)
def the_budget_and_the_threshold_cut_a_span(patch: Planter) -> None:
    def cover(items: Sequence[MediaItem], start: int, num_tokens: int, budget: int) -> int:
        return num_tokens

    patch.setattr(step, "cover_spans", cover)
    patch.setattr(media, "before_span", _anywhere)


@bug(CUT)
def the_cost_of_encoding_cuts_a_span(patch: Planter) -> None:
    patch.setattr(media, "before_span", _anywhere)


@bug(BEGUN, WOULD_BEGIN)
def a_hit_ends_inside_a_span(patch: Planter) -> None:
    patch.setattr(prefix_hits, "before_span", _anywhere)


@bug(BEGUN, WOULD_BEGIN)
def a_hit_is_cut_back_to_the_block_before_the_end_of_a_span(patch: Planter) -> None:
    def before_spans(request: Request, end: int, size: int) -> int:
        return before_span(request.media, end * size) // size

    patch.setattr(prefix_hits, "_before_spans", before_spans)


@bug(BEGUN, WOULD_BEGIN)
def a_preempted_request_resumes_inside_a_span(patch: Planter) -> None:
    original = prefix_hits._before_spans

    def before_spans(request: Request, end: int, size: int) -> int:
        return end if request.num_preemptions else original(request, end, size)

    patch.setattr(prefix_hits, "_before_spans", before_spans)


@bug("a plan does not say that a place is a span")
def the_executor_is_not_told_of_spans(patch: Planter) -> None:
    original = planning._place
    patch.setattr(planning, "_place", lambda item: replace(original(item), is_whole=False))


def _anywhere(items: Sequence[MediaItem], position: int) -> int:
    return position


ALL_BUGS = {**BUGS, **MEDIA_BUGS}
