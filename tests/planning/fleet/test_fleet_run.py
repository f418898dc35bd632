"""A fleet in virtual time: it serves as an engine and a server do, and shows what goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.planning.fleet.settings import Autoscaler, FleetSettings, Loss
from tokenmill.planning.virtual_run import VirtualRun
from tokenmill.planning.workload import PlannedRequest

from ...core.plugin_packages import Packages
from ..planning import make_request, make_times
from .fleets import draw, serve


@pytest.mark.parametrize("scheduler", ["chunked", "prefill-first"])
def test_a_fleet_of_one_is_the_engine_that_compare_runs(scheduler: str) -> None:
    requests = draw(20.0, 10.0)
    options = {"scheduler": scheduler, "num_gpu_blocks_override": 20}
    config = EngineConfig(disable_log_stats=True, **options)
    one = VirtualRun(requests, config, make_times()).run()
    fleet = serve(requests, num_replicas=1, options=options)
    assert one.num_preemptions["recompute"] > 0
    for name in (
        "completed", "num_steps", "mean_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms",
        "prefix_cache_hit_rate", "num_preemptions", "duration",
    ):  # fmt: skip
        assert getattr(fleet, name) == getattr(one, name), name
    assert one.p99_itl_ms is not None and fleet.p99_itl_ms is not None
    assert one.p99_itl_ms <= fleet.p99_itl_ms <= one.p99_itl_ms * 1.0051


def test_equal_arguments_give_equal_outcomes() -> None:
    requests = draw(60.0, 3.0)
    settings = {"num_replicas": 3, "losses": (Loss(at=1.0, first=1, last=1),), "start_seconds": 0.5}
    assert serve(requests, **settings) == serve(requests, **settings)
    assert serve(requests, **settings) != serve(draw(60.0, 3.0, seed=1), **settings)


def test_more_replicas_divide_the_load() -> None:
    requests = draw(60.0, 10.0)
    one, four = serve(requests, num_replicas=1), serve(requests, num_replicas=4)
    assert one.completed == four.completed == len(requests)
    assert one.p99_ttft_ms is not None and four.p99_ttft_ms is not None
    assert one.p99_ttft_ms > 2 * four.p99_ttft_ms
    assert four.replica_hours == pytest.approx(4 * four.duration / 3600)


def test_the_prefix_aware_router_finds_more_prefixes_than_turns() -> None:
    requests = draw(20.0, 20.0, prefix_len=320)
    options = {"num_gpu_blocks_override": 64}
    aware = serve(requests, router="prefix-aware", num_replicas=4, options=options)
    turns = serve(requests, router="round-robin", num_replicas=4, options=options)
    assert aware.prefix_cache_hit_rate is not None and turns.prefix_cache_hit_rate is not None
    assert aware.prefix_cache_hit_rate > turns.prefix_cache_hit_rate + 0.1


def test_requests_of_a_tenant_stay_together_with_the_session_router() -> None:
    outcome = serve(draw(20.0, 5.0, num_tenants=1), router="session", num_replicas=3)
    assert outcome.imbalance == 3.0


# Losses


def test_a_lost_replica_ends_begun_requests_and_others_take_over_the_rest() -> None:
    begun = [make_request(number, 16, 200) for number in range(2)]
    waiting = [make_request(number, 16, 4, at=1.005) for number in range(2, 4)]
    outcome = serve(
        [*begun, *waiting],
        router="round-robin",
        num_replicas=2,
        losses=(Loss(at=1.006, first=0, last=0),),
    )
    # Each has a begun request. The new one of the lost replica is in no step yet.
    assert outcome.failures == {"replica lost": 1}
    assert (outcome.num_begun_lost, outcome.num_resent, outcome.completed) == (1, 1, 3)


def test_a_request_that_was_in_two_lost_replicas_is_not_sent_to_a_third() -> None:
    outcome = serve(
        [make_request(0, 1000, 4)],
        router="round-robin",
        num_replicas=3,
        losses=(Loss(at=0.1, first=0, last=0), Loss(at=0.5, first=1, last=1)),
    )
    assert outcome.failures == {"replica lost": 1} and outcome.num_begun_lost == 0
    assert outcome.num_resent == 1


def test_without_replicas_requests_fail_until_one_is_back() -> None:
    requests = [make_request(number, 16, 2, at=float(number)) for number in range(30)]
    outcome = serve(
        requests, num_replicas=2, start_seconds=10.0, losses=(Loss(at=4.5, first=0, last=1),)
    )
    assert outcome.failures == {"no replica serves": 10}  # those at 5 to 14 seconds
    assert outcome.completed == 20
    assert outcome.moments[-1].num_serving == 2
    # Replicas cost until they are lost, and from the detection 0.1 seconds later.
    assert outcome.replica_hours == pytest.approx(2 * (outcome.duration - 0.1) / 3600)


def test_machines_that_stay_away_come_back_later() -> None:
    requests = [make_request(number, 16, 2, at=float(number)) for number in range(30)]
    outcome = serve(
        requests, num_replicas=1, start_seconds=1.0, losses=(Loss(at=4.5, first=0, last=0, away=9),)
    )
    assert outcome.failures == {"no replica serves": 10}


# Planted faults


def test_a_router_that_ignores_load_is_visible(packages: Packages) -> None:
    _install_router(packages, "return replicas[0].index")
    requests = draw(60.0, 5.0)
    blind = serve(requests, router="odd", num_replicas=4)
    good = serve(requests, num_replicas=4)
    assert blind.imbalance == 4.0 and good.imbalance is not None and good.imbalance < 2
    assert blind.max_open > 5 * good.max_open
    assert blind.p99_ttft_ms is not None and good.p99_ttft_ms is not None
    assert blind.p99_ttft_ms > 5 * good.p99_ttft_ms


def test_a_router_that_chooses_a_lost_replica_is_counted_and_overruled(packages: Packages) -> None:
    _install_router(packages, "return 0")
    requests = [make_request(number, 16, 2, at=float(number)) for number in range(10)]
    outcome = serve(requests, router="odd", num_replicas=2, losses=(Loss(at=4.5, first=0, last=0),))
    assert outcome.plugin_failures["odd in router.route"] == 3  # then it is not called any more
    assert outcome.completed == 10


def test_a_lost_replica_that_is_still_chosen_is_visible() -> None:
    requests = [make_request(number, 16, 2, at=0.5 * number) for number in range(20)]
    loss = (Loss(at=4.2, first=0, last=0),)
    late = serve(requests, num_replicas=2, losses=loss, detection_seconds=3.0)
    soon = serve(requests, num_replicas=2, losses=loss)
    # The dead replica seems idle after each request to the other one.
    assert late.num_sent_to_lost == late.num_resent > 0 and late.completed == 20
    assert soon.num_sent_to_lost == 0
    assert late.p99_ttft_ms is not None and soon.p99_ttft_ms is not None
    assert late.p99_ttft_ms > 2000 > soon.p99_ttft_ms


def test_a_full_replica_is_passed_over_and_a_full_fleet_refuses() -> None:
    requests = [make_request(number, 16, 50) for number in range(12)]
    options = {"max_num_queued_reqs": 2, "max_num_seqs": 1}
    outcome = serve(requests, router="session", num_replicas=3, options=options)
    assert outcome.failures == {"overloaded": 6} and outcome.completed == 6


# Updates and scaling


def test_a_rolling_update_loses_no_request_and_replaces_each_replica_once() -> None:
    requests = draw(20.0, 15.0)
    outcome = serve(requests, num_replicas=3, start_seconds=2.0, update_at=2.0)
    assert outcome.completed == len(requests) and outcome.num_failed == 0
    serving = [moment.num_serving for moment in outcome.moments]
    assert min(serving) == 2 and serving[-1] == 3
    plain = serve(requests, num_replicas=3)
    assert outcome.prefix_cache_hit_rate is not None and plain.prefix_cache_hit_rate is not None
    assert outcome.prefix_cache_hit_rate < plain.prefix_cache_hit_rate  # new ones begin empty


def test_an_update_goes_on_after_a_replica_is_lost_in_it() -> None:
    outcome = serve(
        draw(20.0, 30.0),
        num_replicas=3,
        start_seconds=2.0,
        update_at=5.0,
        losses=(Loss(at=5.5, first=0, last=0), Loss(at=9.0, first=2, last=2)),
    )
    assert outcome.moments[-1].num_serving == 3


@pytest.mark.parametrize(("metric", "target"), [("requests", 2.0), ("kv", 0.2)])
def test_the_autoscaler_follows_the_load_up_and_down(metric: str, target: float) -> None:
    busy, calm = draw(60.0, 10.0), draw(1.0, 40.0, seed=1)
    requests: list[PlannedRequest] = [*busy, *(replace(one, at=one.at + 10.0) for one in calm)]
    rule = Autoscaler(metric=metric, target=target, highest=6, interval=1.0, patience=5.0)
    outcome = serve(requests, num_replicas=1, start_seconds=1.0, autoscaler=rule)
    assert 2 <= outcome.max_serving <= 6
    assert outcome.moments[-1].num_serving == 1
    assert outcome.num_failed == 0 and outcome.completed == len(requests)
    assert outcome.replica_hours < outcome.max_serving * outcome.duration / 3600


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="--replicas must be in 1 to 1024, got 0"):
        FleetSettings(num_replicas=0)
    with pytest.raises(ConfigError, match="--lose"):
        FleetSettings(losses=(Loss(at=1.0, first=3, last=2),))
    with pytest.raises(ConfigError, match="requests=N or kv=N, got 'cpu'"):
        Autoscaler(metric="cpu", target=1.0)


def _install_router(packages: Packages, body: str) -> None:
    packages.install(
        "odd",
        f"""
        class Odd:
            def route(self, request, replicas):
                {body}
            def forget(self, index):
                pass

        @hookimpl
        def register(registry):
            registry.offer(kinds.ROUTER, "odd", Odd)
        """,
    )
