"""The step-time model: what it counts in a plan, how it adds up, and its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.plan import BlockCopies, CopyDirection, Grant, StepPlan
from tokenmill.planning.step_time import (
    StepTimeModel,
    StepWork,
    bundled_step_times,
    hat_weights,
    read_step_times,
)

from .planning import make_times


def grant(start: int, num_tokens: int, samples: bool = True) -> Grant:
    return Grant(
        engine_id=f"{start}", start=start, num_tokens=num_tokens, new_block_ids=(), samples=samples
    )


def test_work_tells_decodes_from_prompts() -> None:
    pairs = ((0, 5), (1, 6))
    plan = StepPlan(
        step_id=1,
        copies=(BlockCopies(direction=CopyDirection.OUT, pairs=pairs),),
        grants=(grant(99, 1), grant(9, 1), grant(0, 3), grant(10, 2, samples=False)),
    )
    assert StepWork.of(plan) == StepWork(
        num_tokens=7,
        num_requests=4,
        num_sampled=3,
        num_context_tokens=110,
        num_attended_pairs=(1 + 2 + 3) + (11 + 12),
        num_copied_blocks=2,
    )


@pytest.mark.parametrize(
    ("num_tokens", "seconds"), [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (8, 10.0), (12, 16.0)]
)
def test_tokens_lie_on_a_line_between_and_beyond_the_knots(num_tokens: int, seconds: float) -> None:
    model = StepTimeModel(tokens=((1, 1.0), (4, 4.0), (8, 10.0)))
    work = StepWork(num_tokens=num_tokens, num_requests=1, num_sampled=0)
    assert model.run_seconds(work) == pytest.approx(seconds)


def test_weights_of_the_knots_add_up_to_one() -> None:
    for count in range(1, 40):
        assert sum(weight for _, weight in hat_weights((2, 4, 16), count)) == pytest.approx(1)


def test_every_term_is_added() -> None:
    model = StepTimeModel(
        tokens=((1, 1.0),),
        per_sampled_token=10.0,
        per_context_token=100.0,
        per_attended_pair=1e3,
        per_copied_block=1e4,
        overhead_per_step=1e5,
        overhead_per_request=1e6,
    )
    work = StepWork(
        num_tokens=5, num_requests=2, num_sampled=2, num_context_tokens=3, num_attended_pairs=4,
        num_copied_blocks=5,
    )  # fmt: skip
    assert model.run_seconds(work) == 54_321.0
    assert model.step_seconds(work) == 2_154_321.0


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    times = make_times()
    times.write(tmp_path / "times.json")
    assert read_step_times(tmp_path / "times.json") == times


def test_the_bundled_times_are_the_default_model_s() -> None:
    times = bundled_step_times()
    assert times.model.name == "SmolLM2-135M-Instruct" and times.model.num_host_blocks > 0
    assert times.median_relative_error < 0.2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nothing", "malformed"),
        ("{}", "missing required field `date`"),
        ('{"requests": []}', "simulate measure"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as raised:
        read_step_times(path)
    assert str(path) in str(raised.value)


def test_a_file_with_impossible_numbers_is_refused(tmp_path: Path) -> None:
    times = make_times()
    for name, changed in (
        ("format", replace(times, format="other")),
        ("order", replace(times, step_time=StepTimeModel(tokens=((2, 1.0), (1, 1.0))))),
        ("negative", replace(times, step_time=StepTimeModel(tokens=((1, -1.0),)))),
        ("none", replace(times, step_time=StepTimeModel(tokens=()))),
        ("bytes", replace(times, model=replace(times.model, kv_bytes_per_block=0))),
    ):
        changed.write(tmp_path / name)
        with pytest.raises(ConfigError, match="simulate measure"):
            read_step_times(tmp_path / name)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_step_times(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_times().write(tmp_path / "no" / "folder.json")
