"""The CUDA backend with its kernels in the emulator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tokenmill.backends.cuda import paged_attention

from .emulation import EmulatedOperators


@pytest.fixture(scope="session")
def emulated_libraries(pytestconfig: pytest.Config) -> Path:
    """Where they are built, one per head size, when they are first needed."""
    if shutil.which("g++") is None:
        pytest.skip("the kernels run as C++ only where there is g++")
    return Path(pytestconfig.cache.mkdir("compiled"))


@pytest.fixture
def operators(emulated_libraries: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedOperators:
    """CudaPagedAttention computes with them, on CPU tensors."""
    emulated = EmulatedOperators(emulated_libraries)
    monkeypatch.setattr(paged_attention, "load_operators", lambda: emulated)
    return emulated
