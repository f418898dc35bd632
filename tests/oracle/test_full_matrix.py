"""The full matrix of settings on the real model, two hundred prompts each: takes an hour or two.

To write a report, setting by setting, or to add to one what is missing in it:
MATRIX_REPORT=report.json make soak ARGS="tests/oracle -v -p no:randomly"
Some of the settings only: add -k "chunked and starved".
"""

from __future__ import annotations

import os
import random
import shlex
import sys
import time
from pathlib import Path

import pytest

from .comparison import check_what_took_place, find_near_ties
from .many_prompts import many_prompts
from .matrix_report import MatrixReport
from .prompts import NUM_TOKENS
from .reference import Reference, ReferenceCase
from .serving import serve
from .settings import Setting, alternating_product

WHOLE, CHUNKS = 1024, 64
STARVED_TOKENS, STARVED_TOKENS_OF_CHUNKS = 3072, 1536
"""Room in the KV cache for a sixth of what all requests need; and for a twelfth where decodes leave
so little of a step to prompts that few requests run at once."""
MATRIX = sorted(
    alternating_product(WHOLE, CHUNKS), key=lambda s: (not s.is_starved, s.preemption_mode)
)
"""First where most happens; without shortage of memory both modes of preemption are the same."""


@pytest.fixture(scope="module")
def many_cases(reference: Reference) -> list[ReferenceCase]:
    return reference.generate(many_prompts())


@pytest.fixture(scope="module")
def report() -> MatrixReport | None:
    path = os.environ.get("MATRIX_REPORT")
    if not path:
        return None
    command = shlex.join([f"MATRIX_REPORT={path}", "python", "-m", "pytest", *sys.argv[1:]])
    return MatrixReport(Path(path), command, len(MATRIX))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setting", MATRIX, ids=str)
def test_tokens_are_those_of_transformers(
    setting: Setting,
    reference: Reference,
    many_cases: list[ReferenceCase],
    report: MatrixReport | None,
) -> None:
    if report is not None and report.holds(setting):
        pytest.skip("is in the report already")
    cases = random.Random(str(setting)).sample(many_cases, len(many_cases))
    began = time.monotonic()
    served = serve(setting, cases, count_starved_tokens(setting))
    seconds = time.monotonic() - began
    near_ties = find_near_ties(reference.gap, cases, served.token_ids)
    check_what_took_place(setting, served)
    if report is not None:
        report.add(setting, cases, served, near_ties, seconds)


def count_starved_tokens(setting: Setting) -> int:
    mixes_chunks = setting.scheduler == "chunked" and setting.max_num_batched_tokens == CHUNKS
    return STARVED_TOKENS_OF_CHUNKS if mixes_chunks else STARVED_TOKENS


def test_the_matrix_is_full_and_the_prompts_are_two_hundred() -> None:
    assert len(set(MATRIX)) == 48
    prompts = many_prompts()
    assert len(set(prompts)) == 200
    assert {prompt.num_tokens for prompt in prompts} == {NUM_TOKENS}
