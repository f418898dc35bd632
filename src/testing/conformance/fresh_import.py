"""Measures the cost of importing a plugin, in a process that has only the engine's core."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...core.contract.plugin_info import Source
from ...core.processes.child import describe_status

_PROGRAM = """
import json, os, signal, sys, time
from contextlib import suppress
from importlib.metadata import EntryPoint
import tokenmill.core.host.plugin_host
from tokenmill.core.host.hook_checks import new_manager
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.registry import Registry

def measure(name, value):
    manager, registry = new_manager(), Registry()
    before = set(sys.modules)
    started = time.process_time()
    plugin = EntryPoint(name=name, value=value, group="tokenmill.plugins").load()
    with suppress(Exception):  # another test reports errors of `register`
        manager.register(plugin)
        with registry.accepting(Source(plugin=name)):
            manager.hook.register(registry=registry)
    seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))

for line in sys.stdin:
    task = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)  # an import that hangs
            output = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the next tasks are not for the plugin
            os.dup2(output, 1), os.dup2(output, 2)
            os.environ.clear(), os.environ.update(task["environment"])
            os.chdir(task["folder"])
            sys.path[:], sys.pycache_prefix = task["path"], task["bytecode"]
            sys.dont_write_bytecode = False
            measure(task["name"], task["value"])
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        with suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshImport:
    """The cost of importing and registering a plugin after the engine's core is imported."""

    seconds: float
    """Processor time."""
    modules: frozenset[str]
    """The modules that were imported with it."""


def import_afresh(source: Source, entry_point: str, bytecode: Path, enough: float) -> FreshImport:
    """Import a plugin in up to five new processes; returns the quickest import.

    It stops at the first import that takes less than `enough` seconds. The first one compiles the
    plugin's modules into the folder `bytecode`, as an installation does, and on a busy machine each
    may take longer than it should. Raises AssertionError with Python's error if the import fails.
    """
    tries: list[FreshImport] = []
    while len(tries) < 5 and not any(found.seconds < enough for found in tries):
        tries.append(_import_once(source, entry_point, bytecode))
    return min(tries, key=lambda found: found.seconds)


def _import_once(source: Source, entry_point: str, bytecode: Path) -> FreshImport:
    bytecode.mkdir(exist_ok=True)
    output = bytecode / "output"
    task = {
        "name": source.plugin,
        "value": entry_point,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "bytecode": str(bytecode),
        "output": str(output),
    }
    process = _importer()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(task) + "\n")
    process.stdin.flush()
    status = process.stdout.readline()
    if not status:  # the plugin has ended it
        _importer.cache_clear()
    printed = output.read_text() if output.exists() else ""
    assert status == "0\n", f"{printed}\nthe import {describe_status(int(status or 1))}"
    found = json.loads(printed.splitlines()[-1])
    return FreshImport(seconds=found["seconds"], modules=frozenset(found["modules"]))


@cache
def _importer() -> subprocess.Popen[str]:
    """The process that forks for each import. A new interpreter for each would spend most of its
    time with the import of the engine's core."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):
        process.communicate(timeout=10)
