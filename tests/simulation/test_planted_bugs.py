"""The net is tested, too: every planted bug is caught by the seeds alone."""

from __future__ import annotations

import pytest

from tokenmill.testing.simulation import Life

from .planted_bugs import BUGS

NUM_SEEDS = 200


def test_the_list_is_long_enough() -> None:
    assert len(BUGS) >= 20


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    for seed in range(NUM_SEEDS):
        try:
            Life(seed).run()
        except Exception:
            return
    pytest.fail(f"{name}: {NUM_SEEDS} seeds ran clean")
