"""A store for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from limits_store import StoreProcess, find_program, running_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    program = find_program()
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    with running_store(program, tmp_path) as running:
        yield running
