"""Sample events of every kind, with every field set, in all forms that an engine sends."""

from __future__ import annotations

from collections.abc import Mapping

from ....core.contract.events import (
    Admitted,
    Finished,
    FinishedRequest,
    Planned,
    PluginFailed,
    Preempted,
    PrefixCacheChanged,
    Refused,
    RemovedBlock,
    Started,
    StepDone,
    Stopping,
    StoredBlock,
)
from ....core.interfaces import ModelInfo
from ....core.outputs import FinishReason
from ....core.requests.request_options import RequestOptions

_INFO = ModelInfo(
    name="simulated",
    architecture="Simulated",
    dtype="float32",
    device="cpu",
    vocab_size=1000,
    max_model_len=4096,
    eos_token_ids=(2, 7),
    num_parameters=135_000_000,
    block_size=16,
    num_blocks=512,
    num_host_blocks=128,
    kv_windows=(None, 1024),
    kv_bytes_per_block=36_864,
    attention_backend="torch",
    sampling_defaults={"temperature": 0.7},
)

_STARTED = (Started(info=_INFO, model_name="chat-model", max_model_len=2048),)

_OPTIONS = RequestOptions(
    prompt_index=3,
    priority=-1,
    client_request_id="b",
    user="u",
    api_key_id="0123456789abcdef",
    metadata={"tenant": "t"},
    trace_headers={"traceparent": "00-" + 32 * "1" + "-" + 16 * "2" + "-01"},
    cache_salt="s",
    request_timeout=600.0,
)

_ADMITTED = (
    Admitted(request_id="a", num_prompt_tokens=1, max_tokens=1),
    Admitted(
        request_id="b",
        num_prompt_tokens=900,
        max_tokens=256,
        n=2,
        options=_OPTIONS,
        deadline=600.0,
    ),
    Admitted(request_id='"quoted" \\ name\n☃', num_prompt_tokens=5, max_tokens=16),
)

_REFUSED = (
    Refused(request_id="a", num_prompt_tokens=1, max_tokens=1, reason="1 request is waiting"),
    Refused(
        request_id='"quoted" \\ name\n\u2603',
        num_prompt_tokens=900,
        max_tokens=256,
        reason="the key has spent its tokens",
        plugin="token-bucket",
        is_rate_limit=True,
        n=2,
        options=_OPTIONS,
    ),
)

_PLANNED = (
    Planned(step_id=1, num_requests=1, num_tokens=1),
    Planned(step_id=2, num_requests=256, num_tokens=8192),
)

_PREEMPTED = (
    Preempted(
        request_id="a",
        mode="recompute",
        fell_back=False,
        num_computed_tokens=40,
        num_blocks=3,
        total_cumulative_preemption_cnt=1,
    ),
    Preempted(
        request_id="b",
        mode="swap",
        fell_back=False,
        num_computed_tokens=900,
        num_blocks=57,
        total_cumulative_preemption_cnt=10,
        prompt_index=3,
    ),
    Preempted(
        request_id="b",
        mode="recompute",
        fell_back=True,
        num_computed_tokens=0,
        num_blocks=1,
        total_cumulative_preemption_cnt=100,
        prompt_index=3,
        choice_index=1,
    ),
)

_STEP_DONE = (
    StepDone(
        step_id=1,
        seconds=0.031,
        num_prompt_tokens=700,
        num_generation_tokens=3,
        num_running=3,
        num_waiting=2,
        kv_cache_usage=0.5,
        prefix_cache_queries=900,
        prefix_cache_hits=200,
        time_to_first_tokens=(0.2, 1.5),
        inter_token_latencies=(0.03,),
        num_drafts=2,
        num_draft_tokens=8,
        num_accepted_tokens=3,
        accepted_tokens_per_pos=(2, 1, 0, 0),
        expert_tokens=(1400, 700),
        mm_cache_queries=17,
        mm_cache_hits=12,
        num_encoded_tokens=320,
        encoder_seconds=0.02,
    ),
    StepDone(  # a step that failed has no results
        step_id=2,
        raised=True,
        seconds=0.0,
        num_prompt_tokens=0,
        num_generation_tokens=0,
        num_running=0,
        num_waiting=0,
        kv_cache_usage=0.0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        time_to_first_tokens=(),
        inter_token_latencies=(),
    ),
)

_LONG_LIFE = FinishedRequest(
    request_id="a",
    finish_reason=FinishReason.STOP,
    num_prompt_tokens=900,
    num_generation_tokens=200,
    num_cached_tokens=800,
    num_preemptions=2,
    max_tokens=256,
    n=2,
    e2e_latency=9.0,
    queue_time=1.0,
    prefill_time=2.0,
    decode_time=6.0,
    num_draft_tokens=80,
    num_accepted_tokens=30,
    choice_index=1,
    engine_id="a/3/1",
    options=_OPTIONS,
    deadline=600.0,
)


def _short_life(reason: FinishReason, prefill_time: float | None) -> FinishedRequest:
    """A request that ended before its first token, or before it ran at all."""
    return FinishedRequest(
        request_id="b",
        engine_id="b",
        finish_reason=reason,
        num_prompt_tokens=1,
        num_generation_tokens=0,
        num_cached_tokens=0,
        num_preemptions=0,
        max_tokens=1,
        n=1,
        e2e_latency=0.0,
        queue_time=None if prefill_time is None else 0.0,
        prefill_time=prefill_time,
        decode_time=None,
    )


_FINISHED = (
    Finished(requests=(_LONG_LIFE,)),
    *(
        Finished(requests=(_short_life(reason, time), _LONG_LIFE))
        for reason in FinishReason
        for time in (None, 0.0)
    ),
)

_PLUGIN_FAILED = tuple(
    PluginFailed(plugin="other", hook=hook, error="ValueError: x", action=action, count=count)
    for hook, action, count in (
        ("schedule", "fallback", 1),
        ("on_step", "contained", 2),
        ("on_step", "dropped", 3),
        ("admit", "request failed", 10),
    )
)

_FIRST, _SECOND = bytes(range(32)), bytes(range(32, 64))
_LAST = (RemovedBlock(block_hash=_SECOND, group=1),)

_PREFIX_CACHE_CHANGED = tuple(
    PrefixCacheChanged(changes=changes, is_cleared=changes == _LAST)
    for changes in (
        (StoredBlock(block_hash=_FIRST, parent_hash=None, token_ids=tuple(range(16))),),
        (
            RemovedBlock(block_hash=_FIRST),
            StoredBlock(
                block_hash=_SECOND,
                parent_hash=_FIRST,
                token_ids=tuple(range(984, 1000)),
                group=1,
                cache_salt="s",
            ),
        ),
        _LAST,
    )
)

SAMPLE_EVENTS: Mapping[str, tuple[object, ...]] = {
    "on_started": _STARTED,
    "on_admitted": _ADMITTED,
    "on_refused": _REFUSED,
    "on_planned": _PLANNED,
    "on_preempted": _PREEMPTED,
    "on_prefix_cache_changed": _PREFIX_CACHE_CHANGED,
    "on_step": _STEP_DONE,
    "on_finished": _FINISHED,
    "on_plugin_failed": _PLUGIN_FAILED,
    "on_stopping": (Stopping(),),
}
"""Events by hook, in the order of an engine's life."""
