"""Hostile variants of plugins: what comes of each is what docs/hooks.md says, and names the plugin.

The first tier has a sample. `make check` has all of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.core.plugin_packages import Packages
from tokenmill.core.kinds import KINDS

from .computing import COMPUTING
from .serving import SERVING
from .variants import ALL_PLACES, LOSING, VARIANTS, Variant
from .worlds import Unexpected, observe

POLICIES = [one for one in VARIANTS if one.where not in (*COMPUTING, *SERVING)]
SERVED = [one for one in VARIANTS if one.where in SERVING]
COMPUTED = [one for one in VARIANTS if one.where in COMPUTING]
SAMPLE_SEED = 30


def check(variants: Sequence[Variant], packages: Packages) -> None:
    """Compare each with its outcome, and report all differences together."""
    wrong = []
    for variant in variants:
        try:
            found: object = observe(variant, packages)
        except (Unexpected, TimeoutError) as error:
            found = repr(error)
        if found != variant.outcome:
            wrong.append(f"{variant}: expected that {variant.outcome}; but {found}")
    assert not wrong, "\n".join(wrong)


def sample(variants: Sequence[Variant], size: int) -> list[Variant]:
    return random.Random(SAMPLE_SEED).sample(variants, size)


def test_policies_of_a_sample(packages: Packages) -> None:
    check(sample(POLICIES, 12), packages)


def test_parsers_and_routers_of_a_sample(packages: Packages) -> None:
    check(sample(SERVED, 4), packages)


@pytest.mark.parametrize("variant", sample(LOSING, 1), ids=str)
def test_what_ends_the_engine_of_a_sample(variant: Variant, packages: Packages) -> None:
    check([variant], packages)


@pytest.mark.check
@pytest.mark.parametrize("where", {one.where: None for one in VARIANTS})
def test_all_variants_of_a_place(where: str, packages: Packages) -> None:
    check([one for one in VARIANTS if one.where == where], packages)


@pytest.mark.check
@pytest.mark.parametrize("variant", LOSING, ids=str)
def test_all_that_end_the_engine(variant: Variant, packages: Packages) -> None:
    check([variant], packages)


def test_every_kind_has_a_hostile_variant() -> None:
    assert {ALL_PLACES[one.where].kind for one in VARIANTS} == {*KINDS, "package"}
    assert len(VARIANTS) + len(LOSING) > 68
