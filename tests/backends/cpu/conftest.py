"""The native library, and each of its instruction sets in turn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tokenmill.backends.cpu.build import BuildError
from tokenmill.backends.cpu.library import Library, load_library


@pytest.fixture(scope="session")
def library() -> Library:
    try:
        return load_library()
    except BuildError as error:
        if shutil.which("g++") or shutil.which("clang++"):
            raise
        pytest.skip(str(error))


@pytest.fixture(params=["avx512bf16", "avx512", "avx2", "portable"])
def instruction_set(request: pytest.FixtureRequest, library: Library) -> Iterator[str]:
    """Computes with it; skips those that this CPU does not run."""
    name: str = request.param
    if name not in library.instruction_sets:
        pytest.skip(f"this CPU does not run {name}")
    before = library.instruction_set
    library.use_instruction_set(name)
    yield name
    library.use_instruction_set(before)


@pytest.fixture
def restore_threads(library: Library) -> Iterator[None]:
    """Lets a test change the number of threads."""
    before = library.num_threads
    yield
    library.set_threads(before)
