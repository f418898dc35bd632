"""The simulator's seeds check every reason of the step log against what the step knew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenmill.core.contract.explanation import Limit
from tokenmill.core.engine.request import Request
from tokenmill.core.engine.step import Step
from tokenmill.testing.simulation import run_seeds
from tokenmill.testing.simulation.settings import MEDIA_SEEDS

from .reasons import Witness

OUTSIDE = {Limit.GRAMMAR, Limit.RESTART, Limit.OPEN_STEP, Limit.SCORED}
"""Limits that no simulated step decides."""
FEW = (*range(12), 41, MEDIA_SEEDS + 8, MEDIA_SEEDS + 9)
"""Seeds in which all other limits occur."""
MANY = (*range(300), *range(MEDIA_SEEDS, MEDIA_SEEDS + 100))
CHECK = (pytest.mark.check, pytest.mark.depends_on("src/core", "src/plugins", "pyproject.toml"))


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    found = Witness()
    found.watch(monkeypatch)
    return found


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=CHECK)], ids=["few", "400"])
def test_every_reason_is_what_stopped_the_request(witness: Witness, seeds: Sequence[int]) -> None:
    run_seeds(seeds)
    seen = {limit for limit, count in witness.num_seen.items() if count}
    assert seen == set(Limit) - OUTSIDE


DECIDED = (
    Limit.BUDGET,
    Limit.SEQUENCES,
    Limit.BLOCKS,
    Limit.WATERMARK,
    Limit.STAGE,
    Limit.PLUGIN,
    Limit.MEDIA,
    Limit.SPAN,
    Limit.SENIOR,
    Limit.SWAPPING,
)


@pytest.mark.parametrize("limit", DECIDED)
def test_a_wrong_reason_of_the_step_is_noticed(
    witness: Witness, monkeypatch: pytest.MonkeyPatch, limit: Limit
) -> None:
    original, wrong = Step._refuse, Limit.SCORED

    def refuse(self: Step, request: Request, given: Limit) -> bool:
        return original(self, request, wrong if given is limit else given)

    monkeypatch.setattr(Step, "_refuse", refuse)
    with pytest.raises(AssertionError, match=f"the log gives the reason {wrong}.*it is: {limit}"):
        run_seeds(FEW)
