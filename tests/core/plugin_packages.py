"""Small plugin packages for tests, installed for real: a module and a dist-info on sys.path."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tokenmill.core.host import plugin_set

HEADER = """\
from tokenmill.core import kinds
from tokenmill.core.contract.hookspecs import hookimpl
TOKENMILL_API = (1, 1)
"""


class Packages:
    """Installs distributions into a folder that is on sys.path and the working directory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.chdir(folder)

    def install(
        self,
        distribution: str,
        code: str,
        *,
        plugin: str | None = None,
        version: str = "1.0",
        header: str = HEADER,
    ) -> None:
        """A distribution with one plugin, named like it, in a module of the same name."""
        module = distribution.replace("-", "_")
        self.replace(module, header + dedent(code))
        self.install_metadata(distribution, {plugin or distribution: module}, version=version)

    def replace(self, module: str, code: str) -> None:
        """Other code for an installed module. The next import runs it, also within a second, in
        which Python would take the old bytecode. Servers load plugins again."""
        self._monkeypatch.setattr(plugin_set, "_shared", [])
        path = self.folder / f"{module}.py"
        path.write_text(code)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        importlib.invalidate_caches()
        self._monkeypatch.delitem(sys.modules, module, raising=False)

    def install_metadata(
        self, distribution: str, entry_points: dict[str, str], *, version: str = "1.0"
    ) -> None:
        """Only what `pip install` notes down: name, version, entry points."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[tokenmill.plugins]", *lines, ""]))
        importlib.invalidate_caches()

    def write_settings(self, text: str, name: str = "plugins.toml") -> str:
        """A plugins file in the working directory; returns its path."""
        path = self.folder / name
        path.write_text(dedent(text))
        return str(path)
