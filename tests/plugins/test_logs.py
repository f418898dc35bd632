"""The log observers: the stats line, and the warning about preemptions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Preempted
from tokenmill.core.errors import PluginError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.plugins.observers.preemption_log import PreemptionLog
from tokenmill.plugins.observers.stats_log import StatsLog, StatsLogOptions, make_stats_log

from .samples import context, started, step_done


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tokenmill")


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.msg == event]


def preempted(count: int) -> Preempted:
    return Preempted(
        request_id=f"r{count}",
        choice_index=2,
        mode="recompute",
        fell_back=False,
        num_computed_tokens=9,
        num_blocks=2,
        total_cumulative_preemption_cnt=count,
    )


def test_the_stats_line_has_throughput_queue_and_cache(caplog: pytest.LogCaptureFixture) -> None:
    stats = StatsLog(StatsLogOptions())
    stats.on_step(step_done())
    stats.on_step(step_done(num_running=1, kv_cache_usage=0.125))
    stats.write(10.0)
    [line] = lines(caplog, "engine_stats")
    assert line["avg_prompt_throughput"] == "6.0 tokens/s"
    assert line["avg_generation_throughput"] == "0.4 tokens/s"
    assert (line["running"], line["waiting"]) == (1, 1)
    assert line["kv_cache_usage"] == "12.5%"
    assert line["prefix_cache_hit_rate"] == "25.0%"
    assert "preemptions" not in line
    assert line["total_cumulative_preemption_cnt"] == 0


def test_preemptions_are_in_the_stats_line_of_their_interval_and_in_the_sum_of_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats = StatsLog(StatsLogOptions())
    for count in (1, 2):
        stats.on_preempted(preempted(count))
    for _ in range(2):
        stats.on_step(step_done(prefix_cache_queries=0))
        stats.write(10.0)
    first, second = lines(caplog, "engine_stats")
    assert first["preemptions"] == 2
    assert "prefix_cache_hit_rate" not in first
    assert "preemptions" not in second
    assert [line["total_cumulative_preemption_cnt"] for line in (first, second)] == [2, 2]


def test_drafts_are_in_the_stats_line_if_there_were_any(caplog: pytest.LogCaptureFixture) -> None:
    stats = StatsLog(StatsLogOptions())
    for num_accepted in (3, 0):
        stats.on_step(step_done(num_drafts=1, num_draft_tokens=4, num_accepted_tokens=num_accepted))
    stats.write(10.0)
    stats.on_step(step_done())
    stats.write(10.0)
    first, second = lines(caplog, "engine_stats")
    assert first["mean_acceptance_length"] == "2.50"
    assert first["draft_acceptance_rate"] == "37.5%"
    assert first["accepted_throughput"] == "0.3 tokens/s"
    assert "mean_acceptance_length" not in second


def test_an_idle_engine_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    stats = StatsLog(StatsLogOptions())
    stats.on_step(step_done())
    for _ in range(3):
        stats.write(10.0)
    assert len(lines(caplog, "engine_stats")) == 1


def test_the_line_comes_by_itself_while_the_engine_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def live() -> None:
        stats = StatsLog(StatsLogOptions(interval=0.001))
        async with stats.lifespan():
            while len(lines(caplog, "engine_stats")) < 2:
                stats.on_step(step_done())
                await anyio.lowlevel.checkpoint()

    anyio.run(live)


def test_the_stats_line_is_switched_off_by_flag() -> None:
    assert make_stats_log(context(disable_log_stats=True), StatsLogOptions()) is None
    assert make_stats_log(context(), StatsLogOptions()) is not None


def test_the_interval_is_an_option_and_positive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "plugins.toml"
    settings.write_text("[observer.stats-log]\ninterval = 0")
    with pytest.raises(PluginError, match=r"stats-log\] interval: expected `float` > 0"):
        PluginHost.load(EngineConfig())
    settings.write_text("[observer.stats-log]\ninterval = 1")
    PluginHost.load(EngineConfig())


def test_a_preemption_is_warned_about_with_what_to_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = PreemptionLog(context(max_num_seqs=4))
    log.on_started(started())
    log.on_preempted(preempted(1))
    [line] = lines(caplog, "request_preempted")
    assert line["levelname"] == "WARNING"
    assert (line["request_id"], line["prompt_index"], line["choice_index"]) == ("r1", 0, 2)
    assert line["mode"] == "recompute"
    assert "the KV cache is too small" in line["reason"]
    assert line["advice"] == (
        "raise --kv-cache-memory for more KV cache, lower --max-num-seqs or "
        "--max-num-batched-tokens, or raise --tensor-parallel-size or --pipeline-parallel-size"
    )
    assert (line["kv_cache_memory"], line["max_num_seqs"]) == (10240, 4)
    assert line["total_cumulative_preemption_cnt"] == 1


def test_on_a_gpu_the_advice_is_about_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    log = PreemptionLog(context())
    log.on_started(started(device="cuda"))
    log.on_preempted(preempted(1))
    [line] = lines(caplog, "request_preempted")
    assert line["advice"].startswith("raise --gpu-memory-utilization or --kv-cache-memory for")
    assert line["gpu_memory_utilization"] == 0.92


def test_preemptions_are_warned_about_at_1_10_100(caplog: pytest.LogCaptureFixture) -> None:
    log = PreemptionLog(context())
    log.on_started(started())
    for count in range(1, 250):
        log.on_preempted(preempted(count))
    warned = [
        line["total_cumulative_preemption_cnt"] for line in lines(caplog, "request_preempted")
    ]
    assert warned == [1, 10, 100]
