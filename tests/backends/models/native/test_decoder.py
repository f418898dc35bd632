"""The native decoder against transformers' models, through a saved Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.interfaces import no_progress

from ..dense import compute_logits

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROPE = {"rope_theta": 500.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 8.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}
GEMMA: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 7,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.0,
    "tie_word_embeddings": True,
}
GEMMA3 = GEMMA | {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
PHI4: dict[str, Any] = {
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, one KV head per query head": ("Llama", {"num_key_value_heads": 6}),
    "llama, tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "llama, head size of its own": ("Llama", {"head_dim": 10}),
    "llama, attention biases": ("Llama", {"attention_bias": True}),
    "llama, MLP biases": ("Llama", {"mlp_bias": True}),
    "llama, gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama, tanh gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama, epsilon": ("Llama", {"rms_norm_eps": 0.01}),
    "llama, theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama, dynamic": (
        "Llama",
        {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 4.0}},
    ),
    "llama, longrope": (
        "Llama",
        {"rope_parameters": ROPE | LONGROPE | {"original_max_position_embeddings": 48}},
    ),
    "llama, llama3": ("Llama", {"rope_parameters": ROPE | LLAMA3}),
    "llama, yarn": ("Llama", {"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 4.0}}),
    "llama, yarn with all numbers": (
        "Llama",
        {
            "rope_parameters": ROPE
            | {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2}
            | {"mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}
        },
    ),
    "mistral, full attention": ("Mistral", {"sliding_window": None}),
    "mistral, sliding window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2, sliding window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, tied, biases": (
        "Qwen3",
        {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "qwen3, a window in some layers": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "gemma2": ("Gemma2", GEMMA),
    "gemma2, other layer types": (
        "Gemma2",
        GEMMA | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "gemma2, without caps": (
        "Gemma2",
        GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("Gemma3Text", GEMMA3),
    "gemma3, linear rope in full layers": (
        "Gemma3Text",
        GEMMA3
        | {
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 9}),
    "phi4-mini, short": ("Phi3", PHI4 | {"original_max_position_embeddings": 48}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3, listed layers, window": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 0]} | {"use_sliding_window": True, "sliding_window": 7},
    ),
}


def make_reference(family: str, **changes: Any) -> Any:
    """A small model of transformers in which every number matters, norms and biases too."""
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in name and not family.startswith("Gemma") else 0.0
            parameter.normal_(mean, 0.2, generator=generator)
    return model


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_decoder(
        open_checkpoint(path), dtype=dtype, device=torch.device("cpu"), progress=no_progress
    )


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    reference = make_reference(family, **changes)
    reference.save_pretrained(tmp_path)
    token_ids = torch.arange(40) * 31 % 97
    decoder = load(tmp_path)
    with torch.inference_mode():
        expected = reference(token_ids.unsqueeze(0)).logits.squeeze(0)
        torch.testing.assert_close(
            compute_logits(decoder, token_ids), expected, rtol=1e-5, atol=1e-5
        )
    assert decoder.num_parameters == reference.num_parameters()


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Llama", {"head_dim": 16}), ("Qwen3", {"head_dim": 16}), ("Gemma2", GEMMA)],
)
def test_bfloat16_is_as_near_to_float32_as_transformers_is(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    reference = make_reference(family, **changes).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    token_ids = torch.arange(40) * 31 % 97
    with torch.inference_mode():
        theirs = reference(token_ids.unsqueeze(0)).logits.squeeze(0)
        ours = compute_logits(load(tmp_path, torch.bfloat16), token_ids)
        exact = compute_logits(load(tmp_path), token_ids)
    assert ours.dtype == torch.float32
    assert (ours - exact).norm() < 1.2 * (theirs.float() - exact).norm()


def test_sequences_in_one_flat_batch_do_not_mix(tmp_path: Path) -> None:
    """Only the attend callable joins tokens: with each token seeing itself, order is nothing."""
    make_reference("Llama").save_pretrained(tmp_path)
    decoder = load(tmp_path)

    def see_oneself(
        layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
    ) -> torch.Tensor:
        return v_tkd.repeat_interleave(3, dim=1)

    token_ids, positions = torch.tensor([5, 17, 5, 30]), torch.tensor([0, 9, 3, 50])
    hidden = decoder.forward(token_ids, positions, see_oneself)
    torch.testing.assert_close(hidden[0], hidden[2])
    backwards = decoder.forward(token_ids.flip(0), positions.flip(0), see_oneself)
    torch.testing.assert_close(backwards.flip(0), hidden)
