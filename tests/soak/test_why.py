"""The parts of `tokenmill why` add up to the latency of 10,000 simulated requests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tokenmill.testing.simulation import run_seeds

NUM_REQUESTS = 10_000


def test_the_parts_of_ten_thousand_requests_add_up_within_a_millisecond(
    record_property: Callable[[str, object], None],
) -> None:
    """A life of the simulator compares the explanation of each request when it ends. The lives
    have starved caches, drafts, stages, failing steps and all schedulers."""
    num_requests = num_preemptions = num_failed_steps = num_draft_tokens = 0
    for seed in count(10_000):
        found = run_seeds([seed])
        num_requests += found.num_requests
        num_preemptions += found.num_preemptions
        num_failed_steps += found.num_failed_steps
        num_draft_tokens += found.num_draft_tokens
        if num_requests >= NUM_REQUESTS:
            break
    assert num_preemptions and num_failed_steps and num_draft_tokens
    record_property("num_seeds", seed - 10_000 + 1)
    record_property("num_requests", num_requests)
    record_property("num_preemptions", num_preemptions)
    record_property("num_failed_steps", num_failed_steps)
    record_property("num_draft_tokens", num_draft_tokens)
