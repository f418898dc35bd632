"""The native library, and each of its instruction sets in turn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tokenmill.backends.cpu.native import instruction_sets
from tokenmill.backends.cpu.native.architectures import architecture_of
from tokenmill.backends.cpu.native.library import Library, load_library
from tokenmill.backends.machine.compiling import BuildError


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Library:
    """The one that is in use: of the test's instruction set, if it has one."""
    if "instruction_set" in request.fixturenames:
        request.getfixturevalue("instruction_set")
    try:
        return load_library()
    except BuildError as error:
        if shutil.which("g++") or shutil.which("clang++"):
            raise
        pytest.skip(str(error))


@pytest.fixture(params=list(architecture_of().sets))
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on a CPU that runs none better; skips those that this CPU does not run."""
    name: str = request.param
    pretend_best(name, monkeypatch)
    return name


def pretend_best(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this CPU run no better instruction set than that one, which is then loaded."""
    try:
        supported = instruction_sets.supported_sets()
    except BuildError as error:
        pytest.skip(str(error))
    if name not in supported:
        pytest.skip(f"this CPU does not run {name}")
    rest = supported[supported.index(name) :]
    monkeypatch.setattr(instruction_sets, "supported_sets", lambda: rest)
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)


@pytest.fixture
def restore_threads(library: Library) -> Iterator[None]:
    """Lets a test change the number of threads."""
    before = library.num_threads
    yield
    library.set_threads(before)
