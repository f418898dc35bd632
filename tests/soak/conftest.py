"""Tests that load a running server for minutes. `make soak` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 3 * 3600
"""A soak that takes longer hangs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, before markers select what runs."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.soak)
            item.add_marker(pytest.mark.timeout(SECONDS))
