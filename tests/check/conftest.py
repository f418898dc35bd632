"""The tier of `make check`: tests that need more than pip gives, and install it themselves.

A test whose parts are missing is skipped; with CI=true that is a failure, see tests/ci_skips.py.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from .order import HERE, longest_first


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Mark all tests of this folder before markers select what runs. Start the longest first."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("soak") is None:
            item.add_marker(pytest.mark.check)
    yield  # pytest-randomly shuffles
    longest_first(items)
