"""The tier of `make check`: tests that need more than pip gives, and install it themselves.

A test whose parts are missing is skipped; with CI=true that is a failure, see tests/ci_skips.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, before markers select what runs."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("soak") is None:
            item.add_marker(pytest.mark.check)
