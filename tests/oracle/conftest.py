"""transformers' model, and what it generated for the prompts."""

from __future__ import annotations

import pytest

from tokenmill.assembly import verify_default_model
from tokenmill.core.interfaces import no_progress

from .continuations import read_cases
from .reference import Reference, ReferenceCase


@pytest.fixture(scope="module")
def reference() -> Reference:
    """It is loaded by the first test of a module that needs its numbers: 20 s, and 0.8 GB that the
    other modules can do without."""
    return Reference(verify_default_model(no_progress))


@pytest.fixture(scope="session")
def cases() -> list[ReferenceCase]:
    return read_cases()
