"""The checks themselves, on the CPU: what is right passes, and each kind of mistake is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionBatch, AttentionSpec
from tokenmill.backends.attention.torch.backend import TorchAttention

from ..oracle import toy
from ..oracle.reference import continue_greedily
from .cases import CASES, Case, spans
from .checks import check_poisoned_step, check_step, check_writes
from .engine import CHECKPOINT, MOST_REGRET, largest_regret

CPU = {"device": torch.device("cpu"), "dtype": torch.float32}
DECODES = spans((1, 7), (1, 30), (1, 130))
PLAIN = Case(name="plain", sequences=DECODES, changes=CPU)
WINDOW = Case(name="window", sequences=DECODES, changes={**CPU, "sliding_window": 11})


class ForgetsTheWindow(TorchAttention):
    """Sees the whole context."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(replace(spec, sliding_window=None))


class SeesOneMore(TorchAttention):
    """Of each decode, one slot behind its last token."""

    def build_metadata(self, batch: AttentionBatch) -> Any:
        longer = [n + 1 if batch.num_decodes else n for n in batch.seq_lens_host]
        lengths = torch.tensor(longer, dtype=torch.int32)
        return super().build_metadata(replace(batch, seq_lens=lengths, seq_lens_host=longer))


class SpillsOver(TorchAttention):
    """Writes where it has no business."""

    def forward(self, layer: int, *tensors: Any) -> None:
        super().forward(layer, *tensors)
        tensors[3][:, 0].uniform_()


@pytest.mark.parametrize("check", [check_step, check_poisoned_step, check_writes])
@pytest.mark.parametrize("name", ["mixed, plain", "mixed, window and cap", "one-token sequences"])
def test_what_is_right_passes(check: Callable[..., Any], name: str) -> None:
    case = CASES[name]
    check(TorchAttention, replace(case, changes={**case.changes, **CPU}))


@pytest.mark.parametrize(
    ("check", "backend", "case"),
    [
        (check_step, ForgetsTheWindow, WINDOW),
        (check_step, SeesOneMore, PLAIN),
        (check_poisoned_step, SeesOneMore, PLAIN),
        (check_writes, SpillsOver, PLAIN),
    ],
)
def test_a_mistake_is_found(check: Callable[..., Any], backend: Any, case: Case) -> None:
    with pytest.raises(AssertionError):
        check(backend, case)


def test_a_single_token_that_is_not_seen_is_regretted() -> None:
    """By more than what half precision may cost."""
    model = toy.make_reference(CHECKPOINT)
    cases = [case for case in toy.make_cases(model) if len(case.prompt_token_ids) > 1]
    right = [case.token_ids for case in cases]
    assert largest_regret(model, cases, right) < 1e-3
    shortened = [case.prompt_token_ids[1:] for case in cases]
    wrong = continue_greedily(model, shortened, toy.NUM_TOKENS)
    assert largest_regret(model, cases, wrong) > 2 * MOST_REGRET
