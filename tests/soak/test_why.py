"""The parts of `tokenmill why` add up to the latency of 10,000 simulated and of 500 real requests,
and a cause that was planted on a real server is named first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.slow_causes import (
    HUNG,
    ON_ONE_SERVER,
    PLUGIN,
    STAGE,
    alone,
    differences,
    explaining_server,
    hung_stage,
    install_slow_plugin,
)
from tokenmill.testing.simulation import run_seeds

NUM_REQUESTS = 10_000
NUM_REAL_REQUESTS = 500
NUM_PLANTED = 20
MAX_DIFFERENCE = 0.02


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


def test_the_parts_of_500_real_requests_add_up_within_2_percent(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Some wait for blocks, because more come than the server can compute at a time."""
    with explaining_server(tmp_path, num_blocks=128) as asker:
        found = sorted(differences(asker, NUM_REAL_REQUESTS, per_second=4.0))
    for name, number in (("median", len(found) // 2), ("largest", -1)):
        record_property(f"{name} difference, %", round(100 * found[number], 3))
    assert found[-1] <= MAX_DIFFERENCE


@pytest.mark.parametrize("name", ON_ONE_SERVER)
def test_a_cause_on_a_real_server_is_named_first_twenty_times_of_twenty(
    tmp_path: Path, name: str
) -> None:
    plant, cause = ON_ONE_SERVER[name]
    with explaining_server(tmp_path) as asker:
        for number in range(NUM_PLANTED):
            victim = f"victim-{number}"
            plant(asker, victim)
            assert asker.first_cause(victim) == cause, asker.why(victim)


def test_a_slow_plugin_is_named_first_twenty_times_of_twenty(tmp_path: Path) -> None:
    with explaining_server(tmp_path, *install_slow_plugin(tmp_path)) as asker:
        for number in range(NUM_PLANTED):
            alone(asker, f"victim-{number}")
            assert asker.first_cause(f"victim-{number}") == PLUGIN


def test_a_hung_stage_is_named_first_twenty_times_of_twenty(tmp_path: Path) -> None:
    with explaining_server(tmp_path, *STAGE) as asker:
        for number in range(NUM_PLANTED):
            hung_stage(asker, f"victim-{number}")
            assert asker.first_cause(f"victim-{number}") == HUNG
