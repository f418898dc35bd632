"""Deliberately wrong packages, as pip would have left them: a module and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

from tokenmill.core.errors import PluginError
from tokenmill.testing.conformance import package as suite

from . import WRONG, Wrong


def module(body: str, api: str = "TOKENMILL_API = (1, 1)") -> str:
    """The code of a plugin."""
    imports = "from dataclasses import dataclass\nfrom tokenmill.plugin import hookimpl, kinds"
    return f"{imports}\n{api}\n{dedent(body)}"


HOOK = """
@hookimpl
def on_step(event):
    pass
"""
MODULES = {
    "wrong-import": module("import a_module_that_nobody_has"),
    "wrong-twice": module(HOOK),
    "wrong-no-api": module(HOOK, api=""),
    "wrong-api": module(HOOK, api="TOKENMILL_API = (7, 9)"),
    "wrong-hook": module(HOOK.replace("on_step", "on_steps")),
    "wrong-register": module(
        """
        @hookimpl
        def register(registry):
            registry.offer(kinds.SCHEDULER, "wrong", "not something to call")
        """
    ),
    "wrong-options": module(
        """
        @dataclass
        class Options:
            size: int = 3

        class Observer:
            def __init__(self, context, options):
                pass

            @hookimpl
            def on_step(self, event):
                pass

        @hookimpl
        def register(registry):
            registry.offer(kinds.OBSERVER, "wrong", Observer, options=Options)
        """
    ),
    "wrong-factory": module(
        """
        class Scheduler:
            def schedule(self, step):
                pass  # without @hookimpl

        @hookimpl
        def register(registry):
            registry.offer(kinds.SCHEDULER, "wrong", Scheduler)
        """
    ),
    "wrong-name": module(
        """
        class Scheduler:
            @hookimpl
            def schedule(self, step):
                pass

        @hookimpl
        def register(registry):
            registry.offer(kinds.SCHEDULER, "chunked", Scheduler)
        """
    ),
    "wrong-slow": module(
        """
        import time
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        """
        + HOOK.replace("\n", "\n        ")
    ),
    "wrong-torch": module(
        """
        import sys, types
        sys.modules.setdefault("torch", types.ModuleType("torch"))
        """
        + HOOK.replace("\n", "\n        ")
    ),
}


def install_wrong_packages(folder: Path) -> None:
    """Lay all of them into a folder that will be on sys.path; two claim the name wrong-twice."""
    for name, code in MODULES.items():
        (folder / f"{name.replace('-', '_')}.py").write_text(code)
        _write_metadata(folder, name, name)
    _write_metadata(folder, "wrong-twice-again", "wrong-twice")


def _write_metadata(folder: Path, distribution: str, plugin: str) -> None:
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    entry_point = f"{plugin} = {plugin.replace('-', '_')}\n"
    (info / "entry_points.txt").write_text(f"[tokenmill.plugins]\n{entry_point}")


FOUND_BY: Mapping[str, tuple[Any, type[Exception]]] = {
    "wrong-import": (suite.check_the_entry_point_loads, ModuleNotFoundError),
    "wrong-twice": (suite.check_the_entry_point_loads, AssertionError),
    "wrong-no-api": (suite.check_it_says_which_hook_api_it_supports, PluginError),
    "wrong-api": (suite.check_it_says_which_hook_api_it_supports, PluginError),
    "wrong-hook": (suite.check_its_hooks_are_known, PluginError),
    "wrong-register": (suite.check_it_registers, PluginError),
    "wrong-options": (suite.check_its_options_are_documented, AssertionError),
    "wrong-factory": (suite.check_all_of_it_can_be_built, PluginError),
    "wrong-name": (suite.check_all_of_it_can_be_built, PluginError),
    "wrong-slow": (suite.check_the_import_is_quick, AssertionError),
    "wrong-torch": (suite.check_the_import_brings_no_heavy_library, AssertionError),
}
"""The check that finds each of them, and what it raises."""

for _name, (_check, _error) in FOUND_BY.items():
    WRONG.append(Wrong(name=_name, check=_check, make=partial(str, _name), raises=_error))
