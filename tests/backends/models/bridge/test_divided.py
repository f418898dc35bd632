"""Models of transformers, divided by transformers' own plan. Here each rank is a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.models.plain_options import OPTIONS
from tests.backends.models.ranks import Threads
from tests.oracle.architectures import Model
from tests.oracle.test_bridge import MODELS
from tokenmill.backends.models.bridge.bridge import TransformersModels
from tokenmill.backends.models.bridge.model import BridgedModel
from tokenmill.backends.models.opening import describe
from tokenmill.backends.weights.sharding import Shard
from tokenmill.core.errors import ConfigError

TOKENS = torch.arange(3, 30)
BIASED = Model(family="Granite", changes={"attention_bias": True, "mlp_bias": True})


def logits_of(model: BridgedModel) -> torch.Tensor:
    scale = model.config.attention_scale

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert (q.shape[1], k.shape[1]) == (model.config.num_heads, model.config.num_kv_heads)
        q, k, v = (one.transpose(0, 1).unsqueeze(0) for one in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=True
        )
        return out.squeeze(0).transpose(0, 1)

    with torch.inference_mode():
        hidden = model.forward(TOKENS, torch.arange(len(TOKENS)), attend)
        return model.compute_logits(hidden)


def opened(model: Model, path: Path) -> TransformersModels:
    model.make().save_pretrained(path)
    return TransformersModels(describe(path))


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (MODELS["granite"], 2),
        (MODELS["granite"], 4),
        (BIASED, 2),
        (MODELS["olmo2"], 2),
        (MODELS["glm4"], 2),
        (MODELS["gpt-neox"], 4),
    ],
    ids=["granite", "granite on 4 ranks", "biases", "whole attention", "whole MLP", "one qkv"],
)
def test_ranks_compute_the_logits_of_the_whole_model(
    model: Model, size: int, tmp_path: Path
) -> None:
    impl = opened(model, tmp_path)
    checkpoint = impl.open()
    whole = impl.load(checkpoint, OPTIONS)
    ranks = Threads(size)

    parts = []
    for rank in range(size):  # one by one: transformers loads one model at a time
        shard = Shard(rank=rank, size=size)
        part = impl.part(checkpoint, shard)
        loaded = impl.divided(shard, ranks.sum).load(part, OPTIONS)
        estimate = sum(part.stored(name).num_bytes for name in part.tensor_names())
        assert loaded.num_bytes < whole.num_bytes
        assert abs(estimate - loaded.num_bytes) < 0.05 * whole.num_bytes, (
            "biases are estimated as whole"
        )
        parts.append(loaded)
    with ThreadPoolExecutor(size) as threads:
        for logits in threads.map(logits_of, parts):
            torch.testing.assert_close(logits, logits_of(whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        (MODELS["granite"], 5, "the model has only 4 query heads"),
        (
            replace(MODELS["granite"], changes={"intermediate_size": 95}),
            2,
            "plan for GraniteForCausalLM .* cannot divide the 95 rows or columns of .*mlp.* evenly",
        ),
        (
            Model(family="OPT", changes={"ffn_dim": 64, "word_embed_proj_dim": 64}),
            2,
            "transformers' plan for OPTForCausalLM .* has no matrix to divide",
        ),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused_before_weights_are_read(
    model: Model, size: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impl = opened(model, tmp_path)
    checkpoint: Any = impl.open()
    monkeypatch.setattr(type(checkpoint), "tensor", None)
    with pytest.raises(ConfigError, match=message):
        impl.part(checkpoint, Shard(rank=0, size=size))
