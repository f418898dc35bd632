"""What may be imported where: import-linter's contracts in pyproject.toml, and what loads what."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "starlette", "uvicorn", "numpy")
SRC = ROOT / "src"
BAD_IMPORTS = {
    ("core/engine/request.py", "import torch"): "core and the public module",
    ("plugin.py", "from .config import CompilationConfig"): "the package's layers",
    ("backends/execution/choice.py", "from .ray import options"): "tools are rooms",
    ("core/engine/request.py", "from ..shell import steps"): "core's layers",
    ("core/contract/policy.py", "from ..host import choice"): "core's layers",
    ("backends/weights/packed.py", "from ..running import runner"): "backends' layers",
    ("backends/text/plain_text.py", "from .tokenizer import HFTokenizer"): "no import cycles",
    ("backends/text/plain_text.py", "from ..weights import packed"): "text needs no tensors",
    ("core/processes/child.py", "from ..host import choice"): "core's layers",
    ("plugins/orders/fcfs.py", "from ...core.errors import ConfigError"): "plugins are policies",
    ("core/engine/request.py", "from ...backends import machine"): "the package's layers",
    ("plugins/orders/fcfs.py", "from ...backends import machine"): "plugins are policies",
    ("plugins/orders/fcfs.py", "from .priority import Priority"): "plugins do not import",
    ("backends/machine/device.py", "from ...plugins.orders import fcfs"): "the package's layers",
    ("backends/machine/device.py", "import uvicorn"): "backends and testing",
    ("api/serving/sse.py", "from ...backends import machine"): "the API uses",
    ("api/anthropic/events.py", "from ..openai import chunks"): "each HTTP API knows",
    ("llm.py", "from .backends import machine"): "the library's LLM",
    ("llm.py", "from .doctor import finding"): "tools are rooms",
    ("testing/toy_tokenizer.py", "from ..api import openapi"): "the package's layers",
    ("testing/toy_tokenizer.py", "import torch"): "the conformance kit imports",
    ("backends/machine/device.py", "import transformers"): "transformers is",
}
"""A statement in a file, and the beginning of the name of the contract that it breaks."""
LINTER = """
import contextlib, io, json, pathlib, sys
from importlinter import configuration
from importlinter.application.use_cases import lint_imports

config, folder, cases = json.loads(sys.argv[1])
configuration.configure()

def broken_contracts():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        lint_imports(config, cache_dir=folder + "-cache", no_logo=True)
    lines = printed.getvalue().splitlines()
    assert any("Contracts: " in line for line in lines), printed.getvalue()
    return [line.split(" BROKEN")[0] for line in lines if " BROKEN" in line]

found = [broken_contracts()]
for file, statement in cases:
    path = pathlib.Path(folder, file)
    sound = path.read_text()
    path.write_text(f"{sound}\\n\\ndef late() -> None:\\n    {statement}\\n")
    found.append(broken_contracts())
    path.write_text(sound)
print(json.dumps(found))
"""


def broken_contracts(package: Path, cases: list[tuple[str, str]]) -> list[list[str]]:
    """Names of the contracts that the package breaks: as it is, and with each bad import alone."""
    arguments = json.dumps([str(ROOT / "pyproject.toml"), str(package), cases])
    done = subprocess.run(
        [sys.executable, "-c", LINTER, arguments],
        env={**os.environ, "PYTHONPATH": str(package.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("half", [0, 1])
def test_imports_follow_the_arrows_and_an_import_against_them_is_found(
    half: int, tmp_path: Path
) -> None:
    """Even inside a function; nothing else is reported, except the cycle that it closes."""
    package = tmp_path / "tokenmill"
    shutil.copytree(SRC, package, ignore=shutil.ignore_patterns("__pycache__"))
    cases = list(BAD_IMPORTS)[half::2]
    as_it_is, *found = broken_contracts(package, cases)
    assert as_it_is == []
    for case, broken in zip(cases, found, strict=True):
        assert any(name.startswith(BAD_IMPORTS[case]) for name in broken), case
        assert len([name for name in broken if name != "no import cycles"]) <= 1, (case, broken)


@pytest.mark.parametrize("room", ["", "core", "backends", "api"])
def test_a_new_module_needs_a_layer(room: str, tmp_path: Path) -> None:
    package = tmp_path / "tokenmill"
    shutil.copytree(SRC, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / room / "novelty.py").write_text('"""A module that no layer names."""\n')
    assert broken_contracts(package, [])[0], "no contract names the new module"


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_all_of_core_is_imported_without_torch_or_http() -> None:
    files = [
        path.relative_to(ROOT / "src").with_suffix("") for path in ROOT.glob("src/core/**/*.py")
    ]
    modules = {".".join(("tokenmill", *path.parts)).removesuffix(".__init__") for path in files}
    assert "tokenmill.core.engine.engine_core" in modules
    loaded = loaded_after(f"import {', '.join(sorted(modules))}")
    assert modules <= loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import tokenmill",
        "from tokenmill import SamplingParams, hookimpl, EngineConfig",
        "import tokenmill.api.cli; tokenmill.api.cli.make_parser().format_help()",
        "import tokenmill.plugins.schedulers.chunked",
        "import tokenmill.plugin",
        "import tokenmill.testing.suite_options",
        "from tokenmill.testing import SchedulerConformance, ToolCallParserConformance",
        "import tokenmill.api.server, tokenmill.backends.text.load",
    ],
)
def test_what_plugins_and_help_need_loads_no_torch(statement: str) -> None:
    assert not loaded_after(statement).intersection({"torch", "transformers"})


def test_the_package_refuses_to_be_imported_as_src() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import src"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "import 'tokenmill', not 'src'" in done.stderr


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import tokenmill

    with pytest.raises(AttributeError, match="LLMM"):
        tokenmill.LLMM  # noqa: B018
