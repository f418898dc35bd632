"""The conformance kit, and a test that short jobs go first, which the kit cannot know."""

import pytest
from tokenmill_shortest_job_first.scheduler import ShortestJobFirst, ShortestJobFirstOptions

from tokenmill.testing import (
    EngineBench,
    EngineShape,
    Job,
    PackageConformance,
    SchedulerConformance,
)


class TestShortestJobFirst(SchedulerConformance):
    @pytest.fixture(params=[20.0, 100.0])
    def scheduler(self, request: pytest.FixtureRequest) -> ShortestJobFirst:
        return ShortestJobFirst(ShortestJobFirstOptions(ageing=request.param))


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "shortest-job-first"


@pytest.mark.parametrize("ageing, first", [(100.0, "request-2"), (1e9, "request-1")])
def test_the_shorter_one_goes_first_unless_the_longer_one_has_waited_enough(
    ageing: float, first: str
) -> None:
    scheduler = ShortestJobFirst(ShortestJobFirstOptions(ageing=ageing))
    bench = EngineBench("scheduler", scheduler, EngineShape(max_num_seqs=1))
    running = Job(prompt=(1, 2, 3), max_tokens=8)
    long, short = Job(at=1, prompt=(4,) * 20, max_tokens=9), Job(at=2, prompt=(5,), max_tokens=2)
    bench.run([running, long, short], turns=50)
    assert list(bench.reasons)[:2] == ["request-0", first]
