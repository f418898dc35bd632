"""Random lives of the engine: every token right, every block back, every request ended once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tokenmill.core.engine.engine_core import EngineCore
from tokenmill.testing.simulation import Life, LifeSettings, Outcome, run_seeds
from tokenmill.testing.simulation.settings import MEDIA_SEEDS

CHECK = (pytest.mark.check, pytest.mark.depends_on("src/core", "src/plugins", "pyproject.toml"))


@pytest.mark.parametrize(
    "first", [0, 50, *(pytest.param(first, marks=CHECK) for first in (100, 150))]
)
def test_two_hundred_seeds_run_clean_and_much_happens_in_each_fifty(first: int) -> None:
    total = run_seeds(range(first, first + 50))
    assert total.num_preemptions > 250 and total.num_swaps > 25
    assert total.num_hit_tokens > 1000 and total.num_passed_grants > 1000
    assert total.num_plugin_failures > 100 and total.num_failed_steps > 40
    assert total.num_draft_tokens > total.num_accepted_tokens > 500
    assert total.num_lost_results > 3 and total.num_overtakings > 150


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=CHECK)])
def test_seeds_whose_prompts_have_images_run_clean(count: int) -> None:
    total = run_seeds(range(MEDIA_SEEDS, MEDIA_SEEDS + count))
    assert total.num_item_queries > 15 * count > total.num_item_queries - total.num_item_hits
    assert total.num_spans > 5 * count
    assert total.num_preemptions > 3 * count and total.num_failed_steps > count // 2


@pytest.mark.parametrize("num_stages", [pytest.param(number, marks=CHECK) for number in (2, 3, 4)])
def test_a_hundred_seeds_run_clean_at_every_depth(num_stages: int) -> None:
    total = _run_at_depth(num_stages, 100)
    assert total.num_lost_results > 5 and total.num_preemptions > 250
    assert total.num_overtakings > 500


def _run_at_depth(num_stages: int, num_seeds: int) -> Outcome:
    total = Outcome()
    for seed in range(num_seeds):
        settings = LifeSettings.draw(random.Random(seed))
        total.add(Life(seed, replace(settings, num_stages=num_stages)).run())
    return total


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert Life(11, trace=first.append).run() == Life(11, trace=second.append).run()
    assert first == second


def test_a_failing_seed_is_named_with_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineCore, "check", _fail)
    with pytest.raises(AssertionError) as failure:
        run_seeds([7])
    assert "tokenmill simulate seeds --seed 7 --trace" in failure.value.__notes__[0]


def _fail(core: EngineCore) -> None:
    raise AssertionError("planted")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_seeds_run_clean() -> None:
    run_seeds(range(10_000))
    run_seeds(range(MEDIA_SEEDS, MEDIA_SEEDS + 1_000))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_a_thousand_seeds_run_clean_at_every_depth(num_stages: int) -> None:
    _run_at_depth(num_stages, 1000)
