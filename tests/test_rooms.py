"""What may be imported where: import-linter's contracts in pyproject.toml, and what loads what."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "starlette", "uvicorn", "numpy")
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"


def broken_contracts(root: Path, folder: Path) -> list[str]:
    """Lint the package in `folder` by the rules of `root`; the names of the contracts it breaks."""
    config = str(root / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-logo", "--no-cache", "--config", config],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    return [line.split(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line]


def test_every_import_goes_in_the_direction_of_the_arrows() -> None:
    assert broken_contracts(ROOT, ROOT / ".dev") == []


@pytest.mark.parametrize(
    ("file", "statement", "contract"),
    [
        ("core/engine/request.py", "import torch", "core decides"),
        ("core/engine/request.py", "from ..shell import step_loop", "core's floors"),
        ("core/contract/policy.py", "from ..host import choice", "core's floors"),
        ("backends/weights/fields.py", "from ..running import runner", "backends' floors"),
        ("backends/text/plain_text.py", "from .tokenizer import HFTokenizer", "no circles"),
        (
            "plugins/orders/fcfs.py",
            "from ...core.errors import ConfigError",
            "plugins are policies",
        ),
        ("core/engine/request.py", "from ...backends import machine", "core decides"),
        ("plugins/orders/fcfs.py", "from ...backends import machine", "plugins are policies"),
        ("plugins/orders/fcfs.py", "from .priority import Priority", "plugins do not know"),
        ("backends/machine/device.py", "from ...plugins.orders import fcfs", "backends compute"),
        ("api/openai/sse.py", "from ...backends import machine", "the API reaches"),
        ("llm.py", "from .backends import machine", "the library's LLM"),
        ("testing/toy_tokenizer.py", "from ..api import sse", "testing is for"),
        ("testing/toy_tokenizer.py", "import torch", "the conformance kit knows"),
        ("backends/machine/device.py", "import transformers", "transformers is"),
    ],
)
def test_an_import_against_the_arrows_is_found(
    tmp_path: Path, file: str, statement: str, contract: str
) -> None:
    """Even inside a function; nothing else is reported but the circle that it closes."""
    package = tmp_path / "tokenmill"
    shutil.copytree(ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / file).open("a") as source:
        source.write(f"\n\ndef late() -> None:\n    {statement}\n")
    broken = broken_contracts(ROOT, tmp_path)
    assert [name for name in broken if name.startswith(contract)]
    assert len([name for name in broken if name != "no circles"]) <= 1


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
        "import tokenmill.testing.conformance",
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
