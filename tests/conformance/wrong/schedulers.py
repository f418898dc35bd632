"""Wrong schedulers."""

from __future__ import annotations

import itertools
from typing import Any

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.deciders import decode_first
from tokenmill.core.outputs import FinishReason
from tokenmill.testing.conformance.policies import scheduler as suite

from . import fails

engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class Scheduler:
    """The built-in order, with something wrong around it."""

    num_steps = 0

    @hookimpl
    def schedule(self, step: Any) -> None:
        self.num_steps += 1
        if not self.spoil(step):
            decode_first(step)

    def spoil(self, step: Any) -> object:
        """True if this was the whole schedule."""


@fails(suite.check_no_plan_exceeds_the_limits)
class Overdraws(Scheduler):
    def spoil(self, step: Any) -> None:
        step._step.budget += 1


@fails(suite.check_no_plan_exceeds_the_limits)
class TakesTooManySeats(Scheduler):
    def spoil(self, step: Any) -> None:
        step._step._num_running = 0


@fails(suite.check_it_decides_every_step_itself)
class Raises(Scheduler):
    def spoil(self, step: Any) -> None:
        if self.num_steps % 5 == 0:
            raise ZeroDivisionError("the fifth step")


@fails(suite.check_it_decides_every_step_itself)
class GrantsNothing(Scheduler):
    def spoil(self, step: Any) -> bool:
        return self.num_steps % 5 == 0


@fails(suite.check_every_request_finishes)
class DropsEachStep(Scheduler):
    def spoil(self, step: Any) -> None:
        step._step.must_drain = self.num_steps > 20 and len(step.running) > 4


@fails(suite.check_it_decides_every_step_itself)
class WaitsForCompany(Scheduler):
    def spoil(self, step: Any) -> bool:
        if len(step.running) + len(step.waiting) >= 2:
            return False
        step.wait_until(step.now + 1)
        return True


@fails(suite.check_nobody_starves)
class LastComeFirstServed(Scheduler):
    def spoil(self, step: Any) -> bool:
        for request in (*step.running, *(r for r in step.waiting if r.num_preemptions)):
            step.schedule(request)
        for request in reversed(step.waiting):
            step.schedule(request)
        return True


@fails(suite.check_nobody_starves)
class ShortestFirstWithoutAgeing(Scheduler):
    def spoil(self, step: Any) -> bool:
        for request in step.running:
            step.schedule(request)
        for request in sorted(step.waiting, key=lambda r: (not r.num_preemptions, r.num_tokens)):
            step.schedule(request)
        return True


@fails(suite.check_tokens_are_exact)
class ChangesThePrompt(Scheduler):
    def spoil(self, step: Any) -> None:
        for request in step.waiting:
            if not request.num_preemptions:
                tokens = request._request.token_ids
                tokens[0] = 1000 - tokens[0]


@fails(suite.check_aborts_give_back_every_block)
class KeepsBlocksOfTheAborted(Scheduler):
    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def spoil(self, step: Any) -> None:
        self.seen.update((r.request_id, r) for r in (*step.running, *step.waiting))
        for request_id, request in list(self.seen.items()):
            was_aborted = request._request.finish_reason is FinishReason.ABORT
            if was_aborted and step._step._pool.num_available:
                step._step._pool.take()
                del self.seen[request_id]


@fails(suite.check_it_is_deterministic)
class DiffersFromEngineToEngine(Scheduler):
    def __init__(self) -> None:
        self.number = next(engine_numbers)

    def spoil(self, step: Any) -> bool:
        if self.number % 2:
            return False
        for request in (*step.waiting, *step.running):
            step.schedule(request)
        return True


@fails(suite.check_it_decides_every_step_itself)
class WrapperThatRaises:
    @hookimpl(wrapper=True)
    def schedule(self, step: Any) -> Any:
        yield
        raise ZeroDivisionError


@fails(suite.check_decodes_all_is_true)
class TakesTurns(Scheduler):
    decodes_all = True

    def spoil(self, step: Any) -> bool:
        if step.waiting or len(step.running) < 2:
            return False
        step.schedule(step.running[self.num_steps % len(step.running)])
        return True
