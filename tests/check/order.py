"""The order in which modules of `make check` start.

A module runs in one process. If a long module starts late, the other processes have nothing left to
do while it runs. So the longest modules start first, and short modules fill the gaps at the end. By
default, pytest-xdist orders modules by their number of tests, so a module with one test of several
minutes runs last, and alone. With `--no-loadscope-reorder` it keeps the order of this file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
LONGEST = (
    "check/test_emulated_kernels.py",
    "check/ray/test_in_namespaces.py",
    "check/test_emulated_arm.py",
    "backends/cuda/test_build.py",
    "check/test_replicas.py",
    "check/clients/test_clients.py",
    "pretend_gpu/test_ranks.py",
    "oracle/test_toy_speculation.py",
    "backends/execution/workers/test_stage_windows.py",
    "backends/attention/triton/test_backend.py",
    "simulation/test_seeds.py",
    "check/test_why.py",
    "hostile/test_variants.py",
    "backends/execution/workers/test_pipeline_parallel.py",
    "oracle/test_greedy_equality.py",
    "check/clients/test_openapi_document.py",
    "oracle/test_speculation.py",
    "oracle/test_default_model.py",
    "benchmarks/gpu/test_check.py",
    "check/test_emulated_engine.py",
    "oracle/test_draft_model.py",
    "simulation/test_reasons.py",
    "conformance/test_examples.py",
    "check/test_hanging_starts.py",
    "oracle/test_toy_product.py",
)
"""Modules below tests/, the longest first. benchmarks/results/make_check_times.md has the times."""


def longest_first(items: list[pytest.Item]) -> None:
    """Move the tests of these modules to the front. All others keep their order."""
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
