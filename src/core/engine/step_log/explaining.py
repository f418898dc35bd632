"""Makes the explanation of a request from its ledger and the logged steps."""

from __future__ import annotations

from collections.abc import Mapping

from ...contract.explanation import Explanation, LongestGap
from .ledger import Ledger
from .steps import LoggedStep, Ring


def explain(ledger: Ledger, ring: Ring, now: float) -> Explanation:
    """Divide the latency of a request up to its end, or up to `now`."""
    ledger.update(now)
    alone, images = ledger.prompt, 0.0
    if ledger.prompt_steps and (ledger.num_other_tokens or ledger.prompt_images):
        images = ledger.prompt * ledger.prompt_images / ledger.prompt_steps
        alone *= ledger.prompt_alone / ledger.prompt_steps
    return Explanation(
        request_id=ledger.request_id,
        engine_id=ledger.engine_id,
        prompt_index=ledger.prompt_index,
        choice_index=ledger.choice_index,
        api_key_id=ledger.api_key_id,
        finish_reason=ledger.finish_reason,
        seconds=(ledger.ended_at or now) - ledger.arrival,
        first_token_seconds=(
            None if ledger.first_token_at is None else ledger.first_token_at - ledger.arrival
        ),
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_cached_tokens=ledger.num_cached_tokens,
        num_generated_tokens=ledger.num_generated_tokens,
        num_draft_tokens=ledger.num_draft_tokens,
        num_accepted_tokens=ledger.num_accepted_tokens,
        waiting=dict(ledger.waiting),
        prompt_images=images,
        prompt_alone=alone,
        prompt_others=ledger.prompt - images - alone,
        preempted=ledger.preempted,
        decode_alone=ledger.decode_alone,
        decode_others=ledger.decode_others,
        server=(
            {f"plugins, mostly {ledger.slowest_plugin}": ledger.plugins} if ledger.plugins else {}
        ),
        held_by=ledger.held_by,
        behind=ledger.behind,
        num_prompt_steps=ledger.num_prompt_steps,
        num_other_tokens=ledger.num_other_tokens,
        preemptions=ledger.preemptions,
        longest_gap=_longest_gap(ledger, ring),
    )


def _longest_gap(ledger: Ledger, ring: Ring) -> LongestGap | None:
    """The longest time between two logged steps of a request after its first token."""
    if ledger.first_token_at is None:
        return None
    found: LongestGap | None = None
    after: LoggedStep | None = None
    prompts: dict[str, int] = {}
    members: dict[int, bool] = {}  # steps with the same requests share the tuple
    for step in ring.steps:
        if step.committed_at < ledger.first_token_at:
            break
        if ledger.ended_at is not None and step.planned_at > ledger.ended_at:
            continue  # the id may be that of another request by now
        key = id(step.engine_ids)
        if key not in members:
            members[key] = ledger.engine_id in step.engine_ids
        if members[key]:
            gap = 0.0 if after is None else after.committed_at - step.committed_at
            if after is not None and (found is None or gap > found.seconds):
                found = LongestGap(seconds=gap, step_id=after.step_id, cause=_largest(prompts))
            after, prompts = step, {}
        if after is not None:
            for engine_id, count in step.prompts:
                if engine_id != ledger.engine_id:
                    prompts[engine_id] = prompts.get(engine_id, 0) + count
    return found


def _largest(prompts: Mapping[str, int]) -> str | None:
    return max(prompts, key=prompts.__getitem__, default=None)
