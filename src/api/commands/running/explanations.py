"""Explanations of requests as text: one line per part of the latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....core.contract.explanation import Explanation, Limit, Preemption

LEAST_SHOWN = 0.0005
"""Seconds. Shorter causes are left out of a line."""
MAX_NAMED = 2
"""Maximum number of preemptions that a line names."""


def explanation_text(found: Explanation) -> str:
    """The latency of a request, and a line for each of its parts."""
    rows = {
        "waiting": (sum(found.waiting.values()), _waiting(found)),
        "prompt": (
            found.prompt_images + found.prompt_alone + found.prompt_others,
            _prompt(found),
        ),
        "preempted": (found.preempted, _preempted(found)),
        "decode": (found.decode_alone + found.decode_others, _decode(found)),
        "server": (sum(found.server.values()), parts_text(found.server)),
    }
    lines = [
        f"{name:<10} {seconds:7.2f} s  {text}".rstrip()
        for name, (seconds, text) in rows.items()
        if text or seconds >= LEAST_SHOWN
    ]
    return "\n".join((" · ".join(_head(found)), *lines))


def parts_text(parts: Mapping[str, float]) -> str:
    """Causes with their times, the longest first: "token budget 0.33 s; watermark 20 ms"."""
    longest = sorted(parts.items(), key=lambda item: -item[1])
    return "; ".join(f"{name} {_time(s)}" for name, s in longest if s >= LEAST_SHOWN)


def _head(found: Explanation) -> Iterator[str]:
    yield found.engine_id
    if found.api_key_id is not None:
        yield f"key {found.api_key_id}"
    cached = f" ({found.num_cached_tokens} cached)" if found.num_cached_tokens else ""
    yield f"prompt {found.num_prompt_tokens}{cached}"
    yield f"{found.num_generated_tokens} generated"
    first = found.first_token_seconds
    after = "no token yet" if first is None else f"first token after {first:.2f} s"
    yield f"{found.seconds:.2f} s, {after}"
    if found.finish_reason is None:
        yield "not finished"


def _waiting(found: Explanation) -> str:
    parts = {str(limit): seconds for limit, seconds in found.waiting.items()}
    text = parts_text(parts)
    if found.held_by and Limit.BLOCKS in found.waiting:
        named = f" (held by {', '.join(found.held_by)})"
        seconds = _time(found.waiting[Limit.BLOCKS])
        text = text.replace(f"{Limit.BLOCKS} {seconds}", f"{Limit.BLOCKS} {seconds}{named}")
    return f"{text}; behind {found.behind}" if text and found.behind else text


def _prompt(found: Explanation) -> str:
    if not found.num_prompt_steps:
        return ""
    num_tokens = found.num_prompt_tokens - found.num_cached_tokens
    text = f"{_count(num_tokens, 'token')} in {_count(found.num_prompt_steps, 'step')}"
    if found.prompt_images:
        text += f"; images {_time(found.prompt_images)}"
    if not found.num_other_tokens:
        return text
    others = f"{_count(found.num_other_tokens, 'token')} of others in the same steps"
    return f"{text}; alone {_time(found.prompt_alone)}, the rest is {others}"


def _preempted(found: Explanation) -> str:
    if not found.preemptions:
        return ""
    count = len(found.preemptions)
    times = "once" if count == 1 else f"{count} times"
    named = (_preemption(found, one) for one in found.preemptions[-MAX_NAMED:])
    return "; ".join((times, *named))


def _preemption(found: Explanation, one: Preemption) -> str:
    again = "copied" if one.mode == "swap" else "computed again"
    again = f"{_count(one.num_tokens, 'token')} {again}"
    if one.by is None:
        return f"step {one.step_id} failed: {again}"
    if one.by == found.request_id:
        return f"step {one.step_id}, no block was left for its next token: {again}"
    why = f" (priority {one.by_priority} before {one.priority})"
    reason = why if one.by_priority != one.priority else ""
    return f"step {one.step_id}, by {one.by}{reason}: {again}"


def _decode(found: Explanation) -> str:
    num_tokens = found.num_generated_tokens - 1
    if num_tokens < 1:
        return ""
    num_steps = max(1, num_tokens - found.num_accepted_tokens)
    parts = [f"{_count(num_tokens, 'token')} in {_count(num_steps, 'step')}"]
    if found.num_draft_tokens:
        parts.append(f"drafts {found.num_draft_tokens}, accepted {found.num_accepted_tokens}")
    if found.decode_others >= LEAST_SHOWN:
        parts.append(f"prompts of others {_time(found.decode_others)}")
    if (gap := found.longest_gap) is not None:
        cause = "" if gap.cause is None else f": prompt of {gap.cause}"
        parts.append(f"longest gap {_time(gap.seconds)} at step {gap.step_id}{cause}")
    return "; ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.3 else f"{1000 * seconds:.0f} ms"
