"""Counter-based noise against the published mixing function, and as a source of chance."""

from __future__ import annotations

import torch

from tokenmill.backends.sampling.noise import Purpose, uniform

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """One output of Steele, Lea and Flood's generator, in unsigned integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def reference(seed: int, position: int) -> float:
    bits = splitmix64((splitmix64(seed) + position * 0x9E3779B97F4A7C15) & MASK)
    return ((bits >> 12) + 0.5) / 2**52


def test_the_reference_gives_the_published_first_outputs() -> None:
    """Of the state 0: the test vector of the authors' C code."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF


def test_every_number_equals_the_reference() -> None:
    seeds = torch.tensor([0, 1, 2, 2**62, 2**63 - 1, 987654321])
    for position in (0, 1, 7, 2**31, 2**40):
        numbers = uniform(seeds, torch.full_like(seeds, position)).tolist()
        assert numbers == [reference(seed, position) for seed in seeds.tolist()]


def test_numbers_lie_strictly_between_0_and_1() -> None:
    numbers = uniform(torch.arange(200_000), torch.arange(200_000).flip(0))
    assert float(numbers.min()) > 0 and float(numbers.max()) < 1
    largest = torch.tensor(2**52 - 1).double()
    assert float((largest + 0.5) * 2.0**-52) < 1


def test_numbers_are_uniform_along_seeds_and_along_positions() -> None:
    """Chi-square over 64 bins; 63 degrees of freedom exceed 120 once in 100,000 times."""
    count, still = torch.arange(64_000), torch.zeros(64_000, dtype=torch.int64)
    for numbers in (uniform(count, still), uniform(still, count), uniform(count, count)):
        observed = (numbers * 64).long().bincount(minlength=64)
        assert float(((observed - 1000) ** 2 / 1000).sum()) < 120


def test_neighbouring_seeds_and_positions_are_not_correlated() -> None:
    grid = uniform(torch.arange(300).repeat_interleave(300), torch.arange(300).repeat(300)).view(
        300, 300
    )
    for a, b in (
        (grid[1:], grid[:-1]),
        (grid[:, 1:], grid[:, :-1]),
        (grid[1:, 1:], grid[:-1, :-1]),
    ):
        correlation = torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]
        assert abs(float(correlation)) < 0.015  # 4.5 standard deviations


def test_numbers_for_different_purposes_are_independent() -> None:
    count = torch.arange(100_000)
    numbers = torch.stack([uniform(count, count, purpose) for purpose in Purpose])
    correlations = torch.corrcoef(numbers) - torch.eye(len(Purpose))
    assert float(correlations.abs().max()) < 4.5 / 100_000**0.5
