"""Some decoder classes of transformers, tiny: each runs with its tokens, or is refused at start.

`make soak` judges all of them; see tests/soak/test_decoders.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .decoder_sweep import judge_here

RUNNING = [
    ("gpt2", "float32"),
    ("opt", "float32"),
    ("qwen2_moe", "float32"),
    ("qwen2_moe", "bfloat16"),
    ("gemma4_text", "bfloat16"),
]


@pytest.mark.parametrize(("model_type", "dtype"), RUNNING)
def test_models_whose_heads_read_more_than_hidden_states_run(
    model_type: str, dtype: str, tmp_path: Path
) -> None:
    judgement = judge_here(model_type, dtype, tmp_path, lengths=(5, 30))
    assert (judgement.verdict, judgement.impl) == ("runs", "transformers"), judgement


def test_a_model_that_computes_positions_in_its_own_way_is_refused(tmp_path: Path) -> None:
    judgement = judge_here("bart", "float32", tmp_path, lengths=(5,))
    assert judgement.verdict == "refused"
    assert "BartForCausalLM computes other logits than its own forward pass" in judgement.reason
