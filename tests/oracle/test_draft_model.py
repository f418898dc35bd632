"""Greedy fp32 output with a draft model or head of the real model is transformers' own, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmill.assembly import verify_default_model
from tokenmill.backends.distill.pruned import PrunedCheckpoint
from tokenmill.backends.distill.saving import save_draft
from tokenmill.backends.distill.student import Student
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.interfaces import no_progress

from .comparison import find_near_ties
from .reference import Reference, ReferenceCase
from .serving import serve
from .settings import Setting
from .speculating import make_head
from .test_greedy_equality import SETTINGS

NUM_PROMPTS, NUM_TOKENS = 6, 32
DROPPED = (11, 20, 25)
"""A draft model that lacks these layers of 30 needs no training to be right now and then."""
SMALL_STEPS = Setting(scheduler="chunked", max_num_batched_tokens=40)
STARVED = Setting(scheduler="chunked", preemption_mode="swap", block_size=8, is_starved=True)
CASES = [
    pytest.param("draft", SMALL_STEPS, 3, marks=pytest.mark.check),
    pytest.param("head", STARVED, 3, marks=pytest.mark.check),
    *(
        pytest.param(kind, setting, 1 + i % 8, marks=pytest.mark.soak)
        for kind in ("draft", "head")
        for i, setting in enumerate(SETTINGS)
    ),
]
"""Two in `make check`, because a draft of the real model takes 15 CPU seconds to make and run; on a
toy model tests/backends/drafting does the same in every run. `make soak` adds those in which every
pair of choices occurs, at all lengths."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = verify_default_model(no_progress)
    target = open_checkpoint(path)
    kept = [i for i in range(target.config.num_layers) if i not in DROPPED]
    commonest = torch.arange(16384)
    student = Student(PrunedCheckpoint(target, kept, commonest), torch.float32)
    output = tmp_path_factory.mktemp("drafts") / "dropped"
    save_draft(output, student, commonest, load_tokenizer(path), target.eos_token_ids)
    return output


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = verify_default_model(no_progress)
    return make_head(path, tmp_path_factory.mktemp("drafts") / "head", num_tokens=6000)


@pytest.mark.parametrize(("kind", "setting", "num_tokens"), CASES, ids=str)
def test_tokens_are_those_of_transformers(
    kind: str,
    setting: Setting,
    num_tokens: int,
    reference: Reference,
    cases: list[ReferenceCase],
    request: pytest.FixtureRequest,
) -> None:
    shortest = sorted(cases, key=lambda case: len(case.prompt_token_ids))[:NUM_PROMPTS]
    chosen = [case.shortened(NUM_TOKENS) for case in shortest]
    served = serve(
        setting,
        chosen,
        num_starved_tokens=120,
        speculative_model=str(request.getfixturevalue(kind)),
        num_speculative_tokens=num_tokens,
        speculative_adaptive=False,
    )
    find_near_ties(reference.gap, chosen, served.token_ids)
    assert 0 < served.num_accepted_tokens <= served.num_draft_tokens
    assert served.num_swaps > 0 or not setting.swaps
