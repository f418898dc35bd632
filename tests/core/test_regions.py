"""Packed regions: what a rank did within a step."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from tokenmill.core.errors import PluginError
from tokenmill.core.plan import StepPlan, StepResult, check_result
from tokenmill.core.regions import MAX_REGIONS, NO_REGIONS, Region, Regions

STARTED = 12345.25


def one_call(num_layers: int) -> list[Region]:
    """A region of a millisecond each: four of each layer between an embedding and logits."""
    names = [("embedding", None)]
    names += [(name, layer) for layer in range(num_layers) for name in ("a", "b", "c", "d")]
    names.append(("logits", None))
    times = [STARTED + 1e-3 * index for index in range(len(names) + 1)]
    return [Region(*name, times[index], times[index + 1]) for index, name in enumerate(names)]


def test_regions_are_those_that_were_packed_to_a_microsecond() -> None:
    given = one_call(3)
    sent = msgspec.msgpack.encode(Regions.of(given))
    assert len(sent) < 200 + 12 * len(given)
    found = list(msgspec.msgpack.decode(sent, type=Regions))
    assert [one[:2] for one in found] == [one[:2] for one in given]
    for one, before in zip(found, given, strict=True):
        assert one[2:] == pytest.approx(before[2:], abs=3e-6)
    assert list(Regions.of(())) == list(NO_REGIONS) == []


@pytest.mark.parametrize(
    ("num_layers", "joined"), [(63, 1), (64, 4), (254, 4), (255, 8), (600, 12)]
)
def test_the_layers_of_a_deep_model_become_one_region_each_or_less(
    num_layers: int, joined: int
) -> None:
    given, found = one_call(num_layers), list(Regions.of(one_call(num_layers)))
    assert len(found) <= MAX_REGIONS
    assert (found[0].name, found[-1].name) == ("embedding", "logits")
    assert found[-1].ended == pytest.approx(given[-1].ended, abs=3e-6)
    inner = found[1:-1]
    assert {one.name for one in inner} == {
        1: set("abcd"), 4: {"layer"}, 8: {"layers"}, 12: {"layers"}
    }[joined]  # fmt: skip
    layers = [one.layer for one in inner]
    assert layers == [one.layer for one in given[1:-1:joined]]
    for before, after in pairwise(found):
        assert before.ended == pytest.approx(after.began, abs=3e-6)


def test_an_executor_s_regions_are_checked() -> None:
    plan, result = StepPlan(step_id=1), StepResult(step_id=1, token_ids=())
    check_result(result, plan)
    for wrong in ("regions", Regions(names=("a",), packed=bytes(12 * (MAX_REGIONS + 1)))):
        with pytest.raises(PluginError, match="'regions'"):
            check_result(StepResult(step_id=1, token_ids=(), regions=(wrong,)), plan)  # type: ignore[arg-type]
