"""The net is tested, too: every planted bug is caught by the seeds alone."""

from __future__ import annotations

import pytest

from tokenmill.core.engine.step import Step

from .first_seeds import read_first_seeds
from .planted_media_bugs import ALL_BUGS as BUGS
from .planting import Bug, Planter, find_first

FIRST_SEEDS = read_first_seeds()


def test_every_bug_has_its_first_seed_recorded() -> None:
    assert FIRST_SEEDS.keys() == BUGS.keys()
    assert len(BUGS) >= 70, "bugs were removed from the list"


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_reached_and_caught_by_what_it_breaks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first seed shows it; should the core draw differently by now, the others are searched."""
    bug, planter = BUGS[name], Planter(monkeypatch)
    bug.plant(planter)
    seed = find_first(bug, [FIRST_SEEDS[name], *bug.seeds])
    assert seed is not None, f"{len(bug.seeds)} seeds ran clean"
    assert planter.unused == []


def test_a_bug_that_does_not_fit_the_core_is_not_counted_as_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planter = Planter(monkeypatch)
    planter.setattr(Step, "_bound", lambda self: 1)
    with pytest.raises(TypeError, match="positional argument"):
        find_first(BUGS["a_chunk_is_one_token_too_long"], range(3))
    assert planter.unused == []


def test_a_replacement_that_the_core_no_longer_calls_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planter = Planter(monkeypatch)
    planter.setattr(Step, "__doc__", lambda self: None)
    assert find_first(Bug(lambda planter: None, ()), [0]) is None
    assert planter.unused == ["Step.__doc__"]
