"""Measuring an executor whose times are known, on a clock that only it moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.engines import FunctionPlugin
from tokenmill.api.commands.simulate.measure import MAX_SPREAD, _show
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.policy import StepView
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import Computation
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.shell.local_engine import EngineParts
from tokenmill.planning.measuring import measure_step_times
from tokenmill.planning.probes import PlanMaker, knots_up_to, probes_to_check, probes_to_fit
from tokenmill.planning.step_time import StepTimeModel, StepTimes, StepWork
from tokenmill.testing import ToyTokenizer

from .planning import make_info

KNOWN = StepTimeModel(
    tokens=tuple((count, 0.05 + 0.002 * count) for count in knots_up_to(512)),
    per_sampled_token=0.001,
    per_context_token=1e-5,
    per_attended_pair=2e-6,
    per_copied_block=3e-4,
)
CONFIG = EngineConfig(disable_log_stats=True, max_num_seqs=8)


class SlowExecutor:
    """Its steps take as long as the known model says."""

    def __init__(self, num_blocks: int = 4096) -> None:
        self.info = make_info(num_blocks=num_blocks, num_host_blocks=256)
        self.now = 0.0
        self.is_closed = False

    def launch(self, plan: StepPlan) -> Computation:
        return Computation(self.run, plan)

    def health(self) -> None:
        return None

    def run(self, plan: StepPlan) -> StepResult:
        self.now += KNOWN.run_seconds(StepWork.of(plan))
        tokens = tuple((0,) if grant.samples else () for grant in plan.grants)
        return StepResult(step_id=plan.step_id, token_ids=tokens)

    def close(self) -> None:
        self.is_closed = True

    def clock(self) -> float:
        """To look at it takes half a millisecond, as does everything around a step."""
        self.now += 0.0005
        return self.now


def measure(
    executor: SlowExecutor, config: EngineConfig = CONFIG, *, plugin: object | None = None
) -> StepTimes:
    stages: list[tuple[str, float]] = []
    plugins = PluginHost.load(config, extra=[plugin] if plugin else [])
    found = measure_step_times(
        EngineParts(executor=executor, tokenizer=ToyTokenizer(), plugins=plugins),
        config,
        machine={"processor": "paper"},
        date="2026-01-01",
        progress=lambda stage, part: stages.append((stage, part)),
        seconds=1.0,
        clock=executor.clock,
    )
    assert {stage for stage, part in stages if part == 1.0} == {
        "measuring steps",
        "measuring the engine's loop",
    }
    assert all(0 <= part <= 1 for _, part in stages)
    return found


def test_the_known_model_is_found_and_the_checks_agree() -> None:
    executor = SlowExecutor()
    found = measure(executor)
    assert not executor.is_closed
    assert found.num_rounds == 3 and found.num_fitted_steps > 20
    assert found.median_relative_error < 0.001
    for (count, seconds), (_, known) in zip(found.step_time.tokens, KNOWN.tokens, strict=True):
        assert seconds == pytest.approx(known + 0.0005, rel=1e-3), count
    for name in ("per_sampled_token", "per_context_token", "per_attended_pair", "per_copied_block"):
        assert getattr(found.step_time, name) == pytest.approx(getattr(KNOWN, name), rel=1e-2)


class DisturbedExecutor(SlowExecutor):
    """Every second step takes twice as long."""

    is_disturbed = False

    def run(self, plan: StepPlan) -> StepResult:
        self.is_disturbed = not self.is_disturbed
        if self.is_disturbed:
            self.now += KNOWN.run_seconds(StepWork.of(plan))
        return super().run(plan)


def test_rounds_that_disagree_are_reported_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, disturbed = measure(SlowExecutor()), measure(DisturbedExecutor())
    assert calm.median_spread < 0.01 and disturbed.median_spread > MAX_SPREAD
    for found, is_warned in ((calm, False), (disturbed, True)):
        _show(found, tmp_path)
        assert ("warning: the rounds of a step differ by" in capsys.readouterr().out) is is_warned


def test_the_wait_between_two_steps_of_the_loop_is_the_overhead() -> None:
    found = measure(SlowExecutor()).step_time
    assert found.overhead_per_step == pytest.approx(0.0005)
    assert found.overhead_per_request == pytest.approx(0.0, abs=1e-9)


def test_decodes_in_the_engine_s_loop_are_among_the_checks() -> None:
    names = [step.name for step in measure(SlowExecutor()).checked]
    assert "1 decodes in the engine's loop" in names and "8 decodes in the engine's loop" in names


def test_a_small_kv_cache_is_measured_as_far_as_it_goes() -> None:
    found = measure(SlowExecutor(num_blocks=16))
    assert found.step_time.tokens[-1][0] == 256


def test_a_cache_that_holds_next_to_nothing_is_refused() -> None:
    executor = SlowExecutor(num_blocks=1)
    with pytest.raises(ConfigError, match="too small"):
        measure(executor)


@pytest.mark.parametrize("scheduler", ["chunked", "prefill-first"])
@pytest.mark.parametrize(("budget", "together"), [(1, 1), (3, 1), (8, 4), (31, 15), (32, 16)])
def test_a_small_token_budget_lets_fewer_requests_decode_together(
    budget: int, together: int, scheduler: str
) -> None:
    config = EngineConfig(
        disable_log_stats=True, max_num_batched_tokens=budget, scheduler=scheduler
    )
    found = measure(SlowExecutor(), config)
    names = [step.name for step in found.checked if "loop" in step.name]
    assert names == [f"{n} decodes in the engine's loop" for n in sorted({1, together})]
    assert found.step_time.overhead_per_step == pytest.approx(0.0005)


def test_a_scheduler_that_never_lets_requests_decode_together_is_named() -> None:
    def one_at_a_time(step: StepView) -> None:
        for request in (*step.running, *step.waiting)[:1]:
            step.schedule(request)

    config = replace(CONFIG, scheduler="custom")
    with pytest.raises(ConfigError, match="'custom' never let 8 requests decode together"):
        measure(SlowExecutor(), config, plugin=FunctionPlugin(one_at_a_time))


def test_a_model_length_that_holds_next_to_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len must be at least 32"):
        measure(SlowExecutor(), replace(CONFIG, max_model_len=31))
    assert (
        measure(SlowExecutor(), replace(CONFIG, max_model_len=100)).step_time.tokens[-1][0] == 100
    )


def test_the_made_up_steps_are_new_requests_with_blocks_of_their_own() -> None:
    info = make_info(num_blocks=2048, num_host_blocks=64)
    knots = knots_up_to(64)
    maker = PlanMaker(info)
    seen: set[str] = set()
    for probe in (*probes_to_fit(knots, info), *probes_to_check(knots, info)):
        for plan in maker.plans(probe):
            assert not seen.intersection(start.engine_id for start in plan.starts)
            seen.update(start.engine_id for start in plan.starts)
            granted = [b for grant in plan.grants for ids in grant.new_block_ids for b in ids]
            assert len(set(granted)) == len(granted) and max(granted, default=0) < 2048
        assert plan.num_tokens == probe.num_decodes + probe.chunk
        assert StepWork.of(plan).num_copied_blocks == probe.num_copies
