"""The conformance kit, and a test that tenants share the engine by weight."""

import pytest
from tokenmill_fair_queueing.policy import FairQueueing, FairQueueingOptions

from tokenmill.testing import (
    EngineBench,
    EngineShape,
    Job,
    ObserverConformance,
    PackageConformance,
    SchedulingPolicyConformance,
)


class TestFairQueueing(SchedulingPolicyConformance):
    @pytest.fixture
    def scheduling_policy(self) -> FairQueueing:
        return FairQueueing(FairQueueingOptions())


class TestItsHooks(ObserverConformance):
    @pytest.fixture
    def observer(self) -> FairQueueing:
        return FairQueueing(FairQueueingOptions())


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "fair-queueing"


def order(tenants: str, **weights: float) -> str:
    """The tenants of equal requests in the order in which they were served, one at a time; the
    requests came in the order given, while another one was running."""
    policy = FairQueueing(FairQueueingOptions(weights=weights))
    bench = EngineBench("scheduling_policy", policy, EngineShape(max_num_seqs=1))
    jobs = [Job(prompt=(1, 2), max_tokens=2, metadata={"x-tenant": tenant}) for tenant in tenants]
    bench.run([Job(prompt=(1, 2), max_tokens=8), *jobs], turns=400)
    names = {f"request-{i}": tenant for i, tenant in enumerate(tenants, start=1)}
    assert len(bench.reasons) == len(tenants) + 1
    return "".join(names[name] for name in bench.reasons if name in names)


@pytest.mark.parametrize(
    "tenants, weights, expected",
    [
        ("aaaabb", {}, "abab" + "aa"),
        ("aaaaaa", {}, "aaaaaa"),
        ("aaaabb", {"b": 3.0}, "bb" + "aaaa"),
        ("aaaaabc", {}, "abcaaaa"),
        ("aaabbb", {"b": 0.25}, "aaabbb"),
    ],
)
def test_tenants_take_turns_by_weight(
    tenants: str, weights: dict[str, float], expected: str
) -> None:
    assert order(tenants, **weights) == expected


def test_a_tenant_that_was_away_does_not_save_up_its_turns() -> None:
    policy = FairQueueing(FairQueueingOptions())
    bench = EngineBench("scheduling_policy", policy, EngineShape(max_num_seqs=1))
    early = [Job(prompt=(1,), max_tokens=3, metadata={"x-tenant": "a"}) for _ in range(5)]
    late = [
        Job(at=30, prompt=(1,), max_tokens=3, metadata={"x-tenant": tenant}) for tenant in "aabb"
    ]
    bench.run([*early, *late], turns=400)
    served = [int(name.removeprefix("request-")) for name in bench.reasons]
    assert served == [0, 1, 2, 3, 4, 5, 7, 6, 8]


def test_the_api_key_names_the_tenant_where_no_header_does() -> None:
    policy = FairQueueing(FairQueueingOptions())
    bench = EngineBench("scheduling_policy", policy, EngineShape(max_num_seqs=1))
    jobs = [Job(prompt=(1,), max_tokens=3, api_key_id=key) for key in "xaaab"]
    bench.run(jobs, turns=400)
    assert list(bench.reasons)[:3] == ["request-0", "request-1", "request-4"]


def test_nothing_is_kept_of_requests_that_ended() -> None:
    policy = FairQueueing(FairQueueingOptions())
    bench = EngineBench("scheduling_policy", policy, EngineShape())
    jobs = [Job(prompt=(1,), max_tokens=3, api_key_id=key) for key in "abcabc" * 5]
    bench.run(jobs, turns=400)
    assert len(bench.reasons) == 30
    assert not vars(bench.provider)["_tags"] and not vars(bench.provider)["_last_tags"]
