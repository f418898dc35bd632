"""What may be imported where, seen at run time; the static arrows are import-linter's (`make lint`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "starlette", "uvicorn", "numpy")


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_all_of_core_is_imported_without_torch_or_http() -> None:
    import_all = (
        "import pkgutil, importlib, tokenmill.core as core\n"
        "for found in pkgutil.iter_modules(core.__path__, 'tokenmill.core.'):\n"
        "    importlib.import_module(found.name)"
    )
    loaded = loaded_after(import_all)
    assert "tokenmill.core.engine" in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import tokenmill",
        "from tokenmill import SamplingParams, hookimpl, EngineConfig",
        "import tokenmill.api.cli; tokenmill.api.cli.make_parser()",
        "import tokenmill.plugins.schedulers.chunked",
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
