"""A server with a tiny model that reads images, and transformers' answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Served, serve_engine
from tests.oracle.image_reference import ImageReference
from tests.oracle.tiny_smolvlm import make_reference, write_model
from tokenmill.assembly import AsyncEngine

KEYS = ("first-key", "second-key")


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="package")
def reference(folder: Path) -> ImageReference:
    return make_reference(folder)


@pytest.fixture(scope="package")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of files that requests may name."""
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="package")
def vision(folder: Path, allowed: Path) -> Iterator[Served]:
    engine = AsyncEngine(
        str(folder),
        served_model_name="tiny",
        dtype="float32",
        num_gpu_blocks_override=128,
        disable_log_stats=True,
        limit_mm_per_prompt={"image": 3},
        allowed_local_media_path=str(allowed),
        max_image_pixels=100_000,
        route="ollama",
    )
    with serve_engine(engine, api_keys=KEYS) as served:
        yield served


@pytest.fixture
def http(vision: Served) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    with vision.client(headers=headers) as client:
        yield client


@pytest.fixture
def other_key(vision: Served) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEYS[1]}"}
    with vision.client(headers=headers) as client:
        yield client
