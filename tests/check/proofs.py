"""Proof by content: `make check` leaves out tests that passed with the same inputs.

A module that depends on certain files only says so by the marker `depends_on`, which names what no
import names. proofs.json holds a digest of the inputs of each such module, written by a run in
which all tests passed, and the versions of the tools, which are no part of the digest.
`make check ARGS=--all`, tests that are named in ARGS, and `make soak` ignore the list.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from .inputs import digest_inputs

LIST = Path("tests", "check", "proofs.json")
TIER = "check"
COMMANDS = ("g++", "aarch64-linux-gnu-g++", "qemu-x86_64", "qemu-aarch64", "nvcc")
PACKAGES = ("torch", "transformers", "triton")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run tests proven by content, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "depends_on(*paths): proven by content: tests/check/proofs")
    if config.getoption("markexpr", "") == TIER:
        config.pluginmanager.register(Proofs(config))


class Proofs:
    """What is proven, and what this run proves. With xdist, workers select and this one writes."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._given: dict[str, Any] | None = getattr(config, "workerinput", None)
        asks_for_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        self._uses_list = (
            self._given["uses_proofs"]
            if self._given is not None
            else asks_for_all and not config.getoption("--all")
        )
        self._is_whole = not any("::" in argument for argument in config.args)
        self._left_out: dict[str, int] = {}
        self._passed: defaultdict[str, set[str]] = defaultdict(set)
        self._inputs: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect what is proven; give the other tests of such modules their inputs."""
        modules: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("depends_on") and not item.get_closest_marker("soak"):
                modules[item.path].append(item)
        proven = self._read_list()
        dropped: set[pytest.Item] = set()
        for path, tests in modules.items():
            name = path.relative_to(self._root).as_posix()
            paths = sorted(
                {str(p) for t in tests for m in t.iter_markers("depends_on") for p in m.args}
            )
            digest = digest_inputs(self._root, path, paths)
            if digest is None:
                continue
            if self._uses_list and proven.get(name, {}).get("inputs") == digest:
                dropped.update(tests)
                self._left_out[name] = len(tests)
            for test in tests:
                found = {"paths": paths, "inputs": digest, "tests": len(tests)}
                test.user_properties.append(("proof", found))
        if dropped:
            items[:] = [item for item in items if item not in dropped]
            config.hook.pytest_deselected(items=list(dropped))
        if self._given is not None:
            config.workeroutput["left_out"] = self._left_out  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["uses_proofs"] = self._uses_list

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out |= getattr(node, "workeroutput", {}).get("left_out", {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        inputs = dict(report.user_properties).get("proof")
        if isinstance(inputs, dict) and report.when == "call" and report.passed:
            name = report.nodeid.partition("::")[0]
            self._inputs[name] = inputs
            self._passed[name].add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write what a run proves that passes, and whose inputs nobody changed meanwhile."""
        if exitstatus != pytest.ExitCode.OK or self._given is not None or not self._is_whole:
            return
        old = self._read_list()
        new = {name: proof for name, proof in old.items() if (self._root / name).is_file()}
        for name, found in self._inputs.items():
            is_proven = new.get(name, {}).get("inputs") == found["inputs"]
            is_complete = len(self._passed[name]) == found["tests"]
            digest = digest_inputs(self._root, self._root / name, found["paths"])
            if is_complete and digest == found["inputs"] and not is_proven:
                new[name] = {"inputs": digest, "tools": tool_versions()}
        if new != old:
            text = json.dumps(new, indent=2, sort_keys=True) + "\n"
            (self._root / LIST).write_text(text, encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            number, names = sum(self._left_out.values()), ", ".join(sorted(self._left_out))
            terminalreporter.write_line(f"{number} tests proven by content: {names}")

    def _read_list(self) -> dict[str, Any]:
        path = self._root / LIST
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def tool_versions() -> dict[str, str]:
    """The versions of this machine's compilers, emulators and oracles."""
    versions = {"machine": platform.machine(), "python": platform.python_version()}
    for command in filter(shutil.which, COMMANDS):
        ran = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
        versions[command] = next(iter(ran.stdout.splitlines()), "")
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    return versions | {name: installed[name] for name in PACKAGES if name in installed}
