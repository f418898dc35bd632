"""The planner's runs: times that can be added up by hand, and what policies are known to do."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError, PluginError
from tokenmill.planning.step_time import StepTimeModel
from tokenmill.planning.virtual_run import VirtualRun
from tokenmill.planning.workload import PlannedRequest, SyntheticWorkload

from ..core.plugin_packages import Packages
from .planning import make_request, make_times, run


def test_one_request_takes_what_its_steps_take() -> None:
    outcome = run([make_request(0, length=32, max_tokens=4, at=5.0)])
    # The prompt: 10 ms and 32 tokens; then three decodes of 10 ms and one token.
    assert outcome.mean_ttft_ms == outcome.median_ttft_ms == pytest.approx(42)
    assert outcome.median_itl_ms == outcome.max_itl_ms == pytest.approx(11)
    assert outcome.median_e2el_ms == pytest.approx(42 + 3 * 11)
    assert outcome.duration == pytest.approx(5.075)
    assert outcome.num_steps == 4 and outcome.completed == 1
    assert (outcome.total_input_tokens, outcome.total_output_tokens) == (32, 4)
    assert outcome.output_throughput == pytest.approx(4 / 5.075)


def test_chunks_of_a_prompt_take_a_step_each() -> None:
    outcome = run([make_request(0, length=40, max_tokens=1)], max_num_batched_tokens=16)
    assert outcome.num_steps == 3
    assert outcome.mean_ttft_ms == pytest.approx(3 * 10 + 40)
    assert outcome.median_itl_ms is None


def test_who_comes_during_a_step_is_served_in_the_next_one() -> None:
    requests = [
        make_request(0, length=50, max_tokens=1),
        make_request(1, length=20, max_tokens=1, at=0.05),
    ]
    outcome = run(requests)
    # 60 ms for the first; the second waits 10 ms and takes 30.
    assert outcome.median_ttft_ms == pytest.approx(40)
    assert outcome.p99_ttft_ms == pytest.approx(60)


def test_the_clock_jumps_over_idle_time() -> None:
    requests = [make_request(number, 16, 2, at=1000.0 * number) for number in range(4)]
    outcome = run(requests)
    assert outcome.num_steps == 8
    assert outcome.duration == pytest.approx(3000 + 0.026 + 0.011)


def test_the_same_seed_gives_the_same_numbers_exactly() -> None:
    workload = SyntheticWorkload(
        num_prompts=60, random_input_len=40, random_range_ratio=0.7, request_rate=20.0, seed=5
    )
    first = run(workload.draw(), num_gpu_blocks_override=30, preemption_mode="swap")
    assert first == run(workload.draw(), num_gpu_blocks_override=30, preemption_mode="swap")
    assert sum(first.num_preemptions.values()) > 0


def test_the_schedulers_show_their_trade_off_under_a_mixed_load() -> None:
    chatting = [make_request(number, 8, 200) for number in range(8)]
    long = [make_request(100 + n, 256, 4, at=0.5 + 0.3 * n) for n in range(5)]
    outcomes = {
        name: run(
            [*chatting, *long],
            scheduler=name,
            max_num_batched_tokens=64,
            num_gpu_blocks_override=256,
        )
        for name in ("chunked", "prefill-first")
    }
    chunked, prefill_first = outcomes["chunked"], outcomes["prefill-first"]
    assert chunked.p99_itl_ms and prefill_first.p99_itl_ms
    assert 2 * chunked.p99_itl_ms < prefill_first.p99_itl_ms
    assert chunked.p99_ttft_ms and prefill_first.p99_ttft_ms
    assert prefill_first.p99_ttft_ms < chunked.p99_ttft_ms
    assert chunked.total_output_tokens == prefill_first.total_output_tokens


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_few_blocks_make_preemptions_of_the_chosen_mode(mode: str) -> None:
    requests = [make_request(number, 16, 40) for number in range(4)]
    starved = run(requests, num_gpu_blocks_override=8, preemption_mode=mode)
    other = "swap" if mode == "recompute" else "recompute"
    assert starved.num_preemptions[mode] > 0 and starved.num_preemptions[other] == 0
    assert starved.completed == 4 and starved.num_swap_fallbacks == 0
    ample = run(requests, preemption_mode=mode)
    assert ample.num_preemptions == {"recompute": 0, "swap": 0}


def test_without_host_room_a_swap_falls_back_and_that_is_counted() -> None:
    requests = [make_request(number, 16, 40) for number in range(4)]
    outcome = run(requests, num_gpu_blocks_override=8, preemption_mode="swap", swap_space=0.0)
    assert outcome.num_preemptions["swap"] == 0
    assert outcome.num_swap_fallbacks == outcome.num_preemptions["recompute"] > 0


def test_swapped_blocks_cost_their_time() -> None:
    requests = [make_request(number, 16, 40) for number in range(4)]
    costly = StepTimeModel(
        tokens=((1, 0.001), (2, 0.002)), overhead_per_step=0.01, per_copied_block=5.0
    )
    cheap = run(requests, num_gpu_blocks_override=8, preemption_mode="swap")
    slow = run(
        requests, times=make_times(costly), num_gpu_blocks_override=8, preemption_mode="swap"
    )
    assert slow.num_preemptions == cheap.num_preemptions
    num_copied = (slow.duration - cheap.duration) / 5.0
    assert num_copied == pytest.approx(round(num_copied)) and num_copied >= 2


def test_prefix_hits_are_counted_and_save_their_time() -> None:
    requests = [make_request(7, 64, 1), make_request(7, 64, 1, at=1.0)]
    outcome = run(requests)
    # Of 64 tokens three blocks of 16 are found: the last token is computed all the same.
    assert (outcome.prefix_cache_hits, outcome.prefix_cache_queries) == (48, 128)
    assert outcome.prefix_cache_hit_rate == pytest.approx(48 / 128)
    assert outcome.p99_ttft_ms == pytest.approx(74) and outcome.median_ttft_ms == pytest.approx(26)
    without = run(requests, enable_prefix_caching=False)
    assert without.prefix_cache_hits == 0 and without.median_ttft_ms == pytest.approx(74)


def test_a_cache_salt_keeps_requests_apart() -> None:
    requests = [make_request(7, 64, 1), make_request(7, 64, 1, at=1.0, cache_salt="b")]
    assert run(requests).prefix_cache_hits == 0


def test_refused_requests_are_counted_with_a_reason_and_the_others_served() -> None:
    requests = [
        make_request(0, 300, 10),
        *(make_request(number, 16, 2) for number in range(1, 5)),
    ]
    config = EngineConfig(num_gpu_blocks_override=16, max_num_queued_reqs=3, disable_log_stats=True)
    virtual_run = VirtualRun(requests, config, make_times())
    outcome = virtual_run.run()
    assert outcome.refused == {"never fits": 1, "overloaded": 1} and outcome.completed == 3
    assert "300" in virtual_run.examples["never fits"]
    assert "--max-num-queued-reqs" in virtual_run.examples["overloaded"]


def test_runs_with_the_same_refusals_and_steps_have_the_same_decisions() -> None:
    def decisions(*requests: PlannedRequest, **options: Any) -> int:
        config = EngineConfig(num_gpu_blocks_override=16, disable_log_stats=True, **options)
        virtual_run = VirtualRun(requests, config, make_times())
        virtual_run.run()
        return virtual_run.decisions

    served, too_long = make_request(1, 40, 4), make_request(0, 300, 10)
    assert decisions(served) == decisions(served, max_num_batched_tokens=64)
    assert decisions(served) != decisions(served, max_num_batched_tokens=32)
    assert decisions(served, make_request(2, 16, 4)) != decisions(served, too_long)
    assert decisions(served) != decisions(served, too_long)


def test_requests_that_time_out_are_counted_and_their_tokens_too() -> None:
    outcome = run([make_request(0, 16, 1000), make_request(1, 16, 5)], request_timeout=0.5)
    assert outcome.timed_out == 1 and outcome.completed == 1
    assert 5 < outcome.total_output_tokens < 60


def test_priorities_count_only_under_an_order_that_knows_them() -> None:
    requests = [
        make_request(0, 16, 10),
        make_request(1, 16, 90, at=0.01, priority=1),
        make_request(2, 16, 1, at=0.02),
    ]
    fcfs = run(requests, max_num_seqs=1)
    by_priority = run(requests, max_num_seqs=1, scheduling_policy="priority")
    assert fcfs.completed == by_priority.completed == 3 and not fcfs.refused
    # The last one is served before the long one, which saves it 90 tokens.
    assert fcfs.mean_ttft_ms and by_priority.mean_ttft_ms
    assert fcfs.mean_ttft_ms - by_priority.mean_ttft_ms > 90 * 11 / 3 - 11


def test_settings_that_cannot_work_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="--max-model-len"):
        run([make_request(0, 8, 1)], max_model_len=10**6)
    with pytest.raises(PluginError, match="chunkd"):
        run([make_request(0, 8, 1)], scheduler="chunkd")


def test_the_kv_cache_is_the_measured_one_unless_settings_say_otherwise() -> None:
    fitting = [make_request(0, 1000, 20)]
    assert run(fitting).completed == 1
    assert run(fitting, block_size=32).completed == 1
    assert run(fitting, kv_cache_memory=1023).refused == {"never fits": 1}


def test_progress_goes_up_to_one() -> None:
    parts: list[float] = []
    requests = [make_request(number, 16, 4) for number in range(3)]
    VirtualRun(requests, EngineConfig(disable_log_stats=True), make_times()).run(parts.append)
    assert parts == sorted(parts) and parts[-1] == 1.0


# Policies of others


def install_scheduler(packages: Packages, body: str) -> None:
    packages.install(
        "odd",
        f"""
        class Odd:
            @hookimpl
            def schedule(self, step):
                {body}

        @hookimpl
        def register(registry):
            registry.offer(kinds.SCHEDULER, "odd", Odd)
        """,
    )


def test_a_third_party_s_scheduler_is_found_by_name_and_may_wait(packages: Packages) -> None:
    install_scheduler(
        packages,
        "step.wait_until(0.75) if step.now < 0.75 else [step.schedule(r) for r in "
        "(*step.running, *step.waiting)]",
    )
    outcome = run([make_request(0, 32, 1)], scheduler="odd")
    assert outcome.mean_ttft_ms == pytest.approx(750 + 42)
    assert outcome.plugin_failures == {}


def test_a_scheduler_that_raises_is_counted_and_an_example_kept(packages: Packages) -> None:
    install_scheduler(packages, "raise ValueError('odd indeed')")
    config = EngineConfig(scheduler="odd", disable_log_stats=True)
    virtual_run = VirtualRun([make_request(0, 32, 3)], config, make_times())
    outcome = virtual_run.run()
    assert outcome.completed == 1 and outcome.plugin_failures["odd in schedule"] == 3
    assert "odd indeed" in virtual_run.examples["odd in schedule"]


def test_a_scheduler_that_waits_for_ever_is_counted_and_taken_out(packages: Packages) -> None:
    install_scheduler(packages, "step.wait_until(step.now + 1)")
    outcome = run([make_request(0, 32, 5)], scheduler="odd")
    assert outcome.completed == 1 and outcome.plugin_failures == {"odd in schedule": 3}
    assert outcome.mean_ttft_ms == pytest.approx(1000 + 42)
