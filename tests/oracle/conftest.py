"""transformers' model and its continuations, made once for all tests of this folder."""

from __future__ import annotations

import pytest

from tokenmill.assembly import verify_default_model

from .prompts import all_prompts
from .reference import Reference, ReferenceCase


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(verify_default_model(lambda stage, part: None))


@pytest.fixture(scope="session")
def cases(reference: Reference) -> list[ReferenceCase]:
    return reference.generate(all_prompts())
