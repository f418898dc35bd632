"""Some decoder classes of transformers, tiny: each runs with its tokens, or is refused at start.

`make soak` judges all of them; see tests/soak/test_decoders.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmill.backends.running.checking import model_check
from tokenmill.backends.running.checking.model_check import largest_error

from .decoder_sweep import judge_here

pytestmark = pytest.mark.usefixtures("unhurried")
RUNNING = [
    ("gpt2", "float32"),
    ("opt", "float32"),
    ("qwen2_moe", "float32"),
    ("qwen2_moe", "bfloat16"),
    ("gemma4_text", "bfloat16"),
]


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the start's check would stop."""
    monkeypatch.setattr(model_check, "SECONDS", 600.0)


@pytest.mark.parametrize(("model_type", "dtype"), RUNNING)
def test_models_whose_heads_read_more_than_hidden_states_run(
    model_type: str, dtype: str, tmp_path: Path
) -> None:
    judgement = judge_here(model_type, dtype, tmp_path, lengths=(5, 30))
    assert (judgement.verdict, judgement.impl) == ("runs", "transformers"), judgement


def test_planted_errors_are_far_from_what_rounding_explains(tmp_path: Path) -> None:
    judgement = judge_here("granitemoe", "bfloat16", tmp_path, lengths=(5,))
    assert judgement.error < largest_error(torch.bfloat16) / 2
    assert {"rope theta", "swapped experts", "attention scale"} <= judgement.planted.keys()
    assert min(judgement.planted.values()) > largest_error(torch.bfloat16) * 2


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("bart", "BartForCausalLM does not compute what its own forward pass does"),
        ("musicgen", "transformers cannot build musicgen"),
        ("mamba2", "has layers of type linear_attention"),
        ("bloom", "0 of them attend through its attention interface"),
    ],
)
def test_other_models_are_refused_for_their_reason(
    model_type: str, reason: str, tmp_path: Path
) -> None:
    judgement = judge_here(model_type, "float32", tmp_path, lengths=(5,))
    assert judgement.verdict == "refused"
    assert reason in judgement.reason
