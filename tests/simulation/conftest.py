"""Policies that raise are logged, thousands of times here: not now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tokenmill.testing.quiet_logs import quiet_logs


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_logs():
        yield
