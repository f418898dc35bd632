"""The tier of `make check`: tests that need more than pip gives, and install it themselves.

A test whose parts are missing is skipped; with CI=true that is a failure, see tests/ci_skips.py.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FIRST = ("ray/test_in_namespaces.py", "clients/test_openapi_document.py")
"""Modules that take minutes for one test. At the end, one of them would run alone."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Mark all tests of this folder before markers select what runs. Start the longest first.

    `--no-loadscope-reorder` has pytest-xdist keep the order: its own is by number of tests.
    """
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("soak") is None:
            item.add_marker(pytest.mark.check)
    yield  # pytest-randomly shuffles
    places = {HERE / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
