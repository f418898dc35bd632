"""The pytest plugin of a run with a planted bug: `-p tests.planted.plugin`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from .planting import FOUND, SOURCES, VARIABLE


class Loader(SourceFileLoader):
    """Compiles another text than that of the file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds one module before others do."""

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        self.was_imported = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.rpartition(".")[2] != self._path.stem:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self._path:
            return None
        self.was_imported = True
        spec.loader = Loader(name, spec.origin, self._source)
        return spec


class Watcher:
    """Notes whether a test fails by the exception that counts."""

    def __init__(self, caught_as: str, finder: Finder) -> None:
        self._caught_as, self._finder = caught_as, finder
        self._is_caught = False

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        if call.excinfo is not None and call.when == "call":
            self._is_caught = call.excinfo.typename == self._caught_as

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_caught and self._finder.was_imported:
            session.exitstatus = FOUND


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest.py imports a module of tokenmill."""
    planted = json.loads(os.environ.pop(VARIABLE))
    finder = Finder(SOURCES / planted["file"], planted["source"])
    sys.meta_path.insert(0, finder)
    early_config.pluginmanager.register(Watcher(planted["caught_as"], finder))
