"""The self-test finds bugs of the CPU kernels: all in `make soak`, one of them in `make check`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .kernels import BUGS, Workshop
from .planting import params

pytestmark = [pytest.mark.depends_on("src/backends/cpu/csrc"), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("kernels"))


@pytest.mark.check
def test_the_kernels_as_they_are_pass(workshop: Workshop) -> None:
    assert workshop.findings(None) == ""


@pytest.mark.parametrize("name", params(BUGS))
def test_a_bug_is_found(
    name: str, workshop: Workshop, record_property: Callable[[str, object], None]
) -> None:
    finding = workshop.findings(BUGS[name])
    record_property("finding", finding.partition("\n")[0])
    assert finding.startswith(BUGS[name].caught_as), finding
