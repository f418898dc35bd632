"""Schemathesis asks what /openapi.json allows, and more: every answer is one that it documents."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ...api.serving import Served, serve_engine, toy_engine
from .environments import client_environment, python_with

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)

CONFIGURATION = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 504]
"""
"""A request whose own `request_timeout` is short gets 504."""


@pytest.mark.parametrize(
    ("cases", "examples"),
    [
        (1_500, 20),
        pytest.param(10_000, 600, marks=[pytest.mark.soak, pytest.mark.timeout(3 * 3600)]),
    ],
    ids=["check", "soak"],
)
def test_no_answer_contradicts_the_document(
    cases: int, examples: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with serve_engine(toy_engine(max_model_len=64)) as served:
        output = schemathesis(served, examples, tmp_path)
        served.wait_idle()
    found = re.search(r"(\d+) generated", output)
    assert found and int(found[1]) >= cases, output
    record_property("cases", int(found[1]))


def schemathesis(served: Served, examples: int, folder: Path) -> str:
    """Its report. `examples` is the number of random requests per operation."""
    (folder / "schemathesis.toml").write_text(CONFIGURATION)
    command = [
        str(python_with("schemathesis==4.32.5").with_name("schemathesis")),
        "run",
        f"{served.url}/openapi.json",
        f"--checks={','.join(CHECKS)}",
        "--phases=examples,coverage,fuzzing,stateful",
        f"--max-examples={examples}",
        "--generation-database=none",
        "--seed=1",
        "--request-timeout=60",
        "--no-color",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=client_environment()
    )
    assert done.returncode == 0, f"{done.stdout[-10_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout
