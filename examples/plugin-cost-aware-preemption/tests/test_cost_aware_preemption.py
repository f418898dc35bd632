"""The conformance kit, with swaps alone and with both modes, and the choice of a mode."""

import pytest
from tokenmill_cost_aware_preemption.preemption import CostAware, CostAwareOptions

from tokenmill.testing import (
    EngineBench,
    EngineShape,
    Job,
    PackageConformance,
    PreemptionConformance,
)


class TestCostAware(PreemptionConformance):
    @pytest.fixture(params=[0.0, 12.0], ids=["swaps", "does-both"])
    def preemption_mode(self, request: pytest.FixtureRequest) -> CostAware:
        return CostAware(CostAwareOptions(swap_overhead=request.param))


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "cost-aware"


@pytest.mark.parametrize("overhead, num_swaps", [(20.0, 1), (200.0, 0)])
def test_a_context_is_swapped_if_that_costs_less_than_to_recompute_it(
    overhead: float, num_swaps: int
) -> None:
    mode = CostAware(CostAwareOptions(swap_overhead=overhead))
    bench = EngineBench("preemption_mode", mode, EngineShape(num_blocks=24, num_host_blocks=24))
    bench.run([Job(prompt=(n,) * 40, max_tokens=12) for n in (1, 2)], turns=200)
    copies = [copy for plan in bench.plans for copy in plan.copies]
    assert bench.core.total_preemptions == 1
    assert len(copies) == 2 * num_swaps  # out and in again
