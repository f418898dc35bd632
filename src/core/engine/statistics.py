"""Statistics of steps and requests, for the events that observers get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..contract.activity import LiveRequest
from ..contract.events import Admitted, FinishedRequest, Planned, Preempted, Refused
from ..contract.policy import Refusal
from ..plan import StepPlan
from .request import Request
from .step import PendingPreemption


@dataclass(slots=True)
class StepTally:
    """Tokens and latencies of one committed step."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_tokens_per_pos: list[int] = field(default_factory=list)
    expert_tokens: tuple[int, ...] = ()
    encoder_seconds: float = 0.0

    def count_prompt(self, request: Request) -> None:
        """Count prompt tokens that were computed or found in the cache. Each token counts once."""
        available = min(request.num_computed_tokens, request.num_prompt_tokens)
        if available > request.num_counted_prompt_tokens:
            self.num_prompt_tokens += available - request.num_counted_prompt_tokens
            request.num_counted_prompt_tokens = available

    def count_draft(self, request: Request, num_tokens: int, num_accepted: int) -> None:
        """Count one draft, whose first `num_accepted` tokens were accepted."""
        self.num_drafts += 1
        self.num_draft_tokens += num_tokens
        self.num_accepted_tokens += num_accepted
        per_pos = self.accepted_tokens_per_pos
        per_pos += [0] * (num_tokens - len(per_pos))
        for i in range(num_accepted):
            per_pos[i] += 1
        request.num_draft_tokens += num_tokens
        request.num_accepted_tokens += num_accepted

    def count_token(self, request: Request, now: float) -> None:
        """Count one generated token, and record its time in the request."""
        self.num_generation_tokens += 1
        if request.last_token_time is None:
            request.first_token_time = now
            self.time_to_first_tokens.append(now - request.arrival_time)
        else:
            self.inter_token_latencies.append(now - request.last_token_time)
        request.last_token_time = now


def describe_admitted(choices: Sequence[Request]) -> Admitted:
    """The event for a request that was queued, given all of its choices."""
    request = choices[0]
    return Admitted(
        request_id=request.request_id,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        n=len(choices),
        options=request.options,
        deadline=request.deadline,
    )


def describe_refused(choices: Sequence[Request], refusal: Refusal, plugin: str | None) -> Refused:
    """The event for a request that was not queued; `plugin`: the one that refused it."""
    request = choices[0]
    return Refused(
        request_id=request.request_id,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        reason=refusal.reason,
        plugin=plugin,
        is_rate_limit=refusal.is_rate_limit,
        n=len(choices),
        options=request.options,
    )


def describe_planned(plan: StepPlan) -> Planned:
    """The event for a plan that goes to the device."""
    return Planned(step_id=plan.step_id, num_requests=len(plan.grants), num_tokens=plan.num_tokens)


def describe_preempted(preemption: PendingPreemption, total: int) -> Preempted:
    """The event for a preemption, before its request is changed. `total`: so far, with this one."""
    request = preemption.request
    return Preempted(
        request_id=request.request_id,
        prompt_index=request.options.prompt_index,
        choice_index=request.choice_index,
        mode=preemption.mode,
        fell_back=preemption.fell_back,
        num_computed_tokens=request.num_computed_tokens,
        num_blocks=request.num_blocks,
        total_cumulative_preemption_cnt=total,
    )


def describe_live(request: Request, now: float, waits_for: str | None) -> LiveRequest:
    """The state of a request that has not ended."""
    return LiveRequest(
        request_id=request.request_id,
        prompt_index=request.options.prompt_index,
        choice_index=request.choice_index,
        status=request.status.value,
        priority=request.priority,
        api_key_id=request.options.api_key_id,
        num_prompt_tokens=request.num_prompt_tokens,
        num_generated_tokens=request.num_generated_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_blocks=request.num_blocks,
        num_preemptions=request.num_preemptions,
        age=now - request.arrival_time,
        waits_for=waits_for,
    )


def describe_finished(request: Request, now: float) -> FinishedRequest:
    """The statistics of a request that just ended."""
    assert request.finish_reason is not None
    return FinishedRequest(
        request_id=request.request_id,
        finish_reason=request.finish_reason,
        num_prompt_tokens=request.num_prompt_tokens,
        num_generation_tokens=request.num_generated_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        max_tokens=request.max_tokens,
        n=request.sampling_params.n,
        e2e_latency=now - request.arrival_time,
        queue_time=_between(request.arrival_time, request.first_scheduled_time),
        prefill_time=_between(request.first_scheduled_time, request.first_token_time),
        decode_time=_between(request.first_token_time, request.last_token_time),
        num_draft_tokens=request.num_draft_tokens,
        num_accepted_tokens=request.num_accepted_tokens,
        choice_index=request.choice_index,
        engine_id=request.engine_id,
        options=request.options,
        deadline=request.deadline,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
