"""The fit finds the model that made the steps."""

from __future__ import annotations

import random

import pytest

from tokenmill.planning.fitting import fit_step_time
from tokenmill.planning.probes import knots_up_to
from tokenmill.planning.step_time import StepTimeModel, StepWork

KNOTS = knots_up_to(64)
KNOWN = StepTimeModel(
    tokens=tuple((count, 0.02 + 0.001 * count + 1e-5 * count**2) for count in KNOTS),
    per_sampled_token=0.003,
    per_context_token=2e-5,
    per_attended_pair=3e-6,
    per_copied_block=4e-4,
)


def make_works() -> list[StepWork]:
    rng = random.Random(3)
    works = [
        StepWork(num_tokens=n, num_requests=1, num_sampled=1, num_attended_pairs=n * (n + 1) // 2)
        for n in KNOTS
    ]
    works += [
        StepWork(
            num_tokens=n,
            num_requests=n,
            num_sampled=rng.randint(0, n),
            num_context_tokens=rng.randint(0, 9000),
            num_attended_pairs=rng.randint(0, 9000),
            num_copied_blocks=rng.randint(0, 60),
        )
        for n in rng.choices(range(1, 65), k=40)
    ]
    return works


def test_a_known_model_is_recovered() -> None:
    found = fit_step_time([(work, KNOWN.run_seconds(work)) for work in make_works()], KNOTS)
    for (count, seconds), (known_count, known) in zip(found.tokens, KNOWN.tokens, strict=True):
        assert count == known_count and seconds == pytest.approx(known, rel=1e-4)
    for name in ("per_sampled_token", "per_context_token", "per_attended_pair", "per_copied_block"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=1e-3)


def test_noise_makes_nothing_negative() -> None:
    rng = random.Random(4)
    flat = StepTimeModel(tokens=tuple((count, 0.01) for count in KNOTS))
    steps = [(work, flat.run_seconds(work) * rng.uniform(0.5, 2)) for work in make_works()]
    found = fit_step_time(steps, KNOTS)
    assert all(seconds >= 0 for _, seconds in found.tokens)
    assert min(found.per_sampled_token, found.per_context_token, found.per_attended_pair) >= 0


def test_what_never_happened_costs_nothing() -> None:
    works = [StepWork(num_tokens=n, num_requests=1, num_sampled=1) for n in KNOTS]
    found = fit_step_time([(work, KNOWN.run_seconds(work)) for work in works], KNOTS)
    assert found.per_copied_block == found.per_context_token == 0
    assert found.run_seconds(works[3]) == pytest.approx(KNOWN.run_seconds(works[3]))
