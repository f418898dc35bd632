"""Servers that all tests of this folder share; a test that hurts its server starts its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tokenmill.assembly import AsyncEngine

from .serving import Served, serve_engine, toy_engine


@pytest.fixture(scope="session")
def toy() -> Iterator[Served]:
    """An engine without a model: answers in no time, to test HTTP alone."""
    with serve_engine(toy_engine()) as served:
        yield served


@pytest.fixture
def http(toy: Served) -> Iterator[httpx.Client]:
    with toy.client() as client:
        yield client


@pytest.fixture(scope="session")
def real() -> Iterator[Served]:
    """The default model as it is served. Without a prefix cache: with one, earlier tests decide in
    which parts a prompt is computed."""
    engine = AsyncEngine(
        enable_prefix_caching=False, num_gpu_blocks_override=128, disable_log_stats=True
    )
    with serve_engine(engine) as served:
        yield served
