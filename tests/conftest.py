"""For all tests: threads, no network, the tests that a machine can run, and shared fixtures."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import ssl
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .check.proofs import pytest_addoption as pytest_addoption
from .check.proofs import pytest_configure as pytest_configure
from .ci_skips import pytest_make_collect_report as pytest_make_collect_report
from .ci_skips import pytest_runtest_makereport as pytest_runtest_makereport
from .core.plugin_packages import Packages
from .soak_report import pytest_runtest_logreport as pytest_runtest_logreport

pytest_plugins = ["tests.cpu_budget"]
HERE = Path(__file__).parent
OTHER_TIERS = (HERE / "check", HERE / "soak")
FIRST_TIER = "not soak and not check"
"""The markers of `addopts` in pyproject.toml."""
# OpenMP's threads wait for each other by spinning; with as many of them as cores, any other process
# stalls all of them, and the tests take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# transformers, the oracle, would ask its hub about local files, too.
os.environ["HF_HUB_OFFLINE"] = "1"
# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the servers
# that they start and end with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, and exempt from it what lives to the end.

    Thousands of tests and all imported modules are a million objects: a full collection, which
    some tests ask for, would take a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the folders of the other tiers where the first one runs without naming them.

    Every process of `make test` would import them, and the vendors' clients, to select nothing.
    """
    if collection_path not in OTHER_TIERS or config.option.markexpr != FIRST_TIER:
        return None
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return True if not any(path.is_relative_to(collection_path) for path in named) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Give freed memory back to the system after each module.

    glibc keeps what an engine's threads have freed: 0.5 GB of an engine in float32, and not always
    the same, so that a worker would grow to several of them.
    """
    yield
    if nextitem is not None and nextitem.path != item.path:
        with suppress(AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """All clients of this process share one context with the authorities' certificates.

    httpx makes one for each client, and for each `httpx.get`, also without TLS: 27 ms of CPU time,
    so that a test that asks a server every 10 ms whether it is ready would keep a core busy.
    """
    make = ssl.create_default_context
    shared = functools.cache(make)

    def context(*purpose: ssl.Purpose, **options: str | None) -> ssl.SSLContext:
        """Tests change contexts that they make themselves, which name no file."""
        return (shared if options.keys() == {"cafile"} else make)(*purpose, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", context)
        yield


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without a plugins.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    """Installs plugin packages into the working directory."""
    return Packages(tmp_path, monkeypatch)
