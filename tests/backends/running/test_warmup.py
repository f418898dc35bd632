"""The step that measures a GPU's activations, run on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenmill.backends.attention.base import AttentionBatch
from tokenmill.backends.attention.torch.backend import TorchAttention, TorchMetadata
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.running.parts.model_parts import ModelParts
from tokenmill.backends.running.warmup import run_largest_step
from tokenmill.backends.weights.config.kv_groups import one_group
from tokenmill.core.config import EngineConfig

from ..tiny import CONFIG, attention_spec, decoder


@pytest.mark.parametrize(
    ("num_seqs", "num_drafts", "num_tokens", "expected"),
    [
        (4, 0, 100, [1, 1, 1, 97]),
        (4, 0, 600, [256, 256, 87, 1]),
        (3, 0, 5000, [256] * 3),
        (10, 0, 4, [1, 1, 1, 1]),
        (2, 2, 100, [1, 1, 1, 1, 1, 95]),
        (2, 5, 8, [1] * 8),
    ],
)
def test_the_largest_step_is_as_large_as_the_configuration_allows(
    num_seqs: int, num_drafts: int, num_tokens: int, expected: Sequence[int]
) -> None:
    """As many tokens and sampled rows as may be, none longer than the model's 256 positions."""
    seen: list[Sequence[int]] = []

    class Watching(TorchAttention):
        def build_metadata(self, batch: AttentionBatch) -> TorchMetadata:
            seen.append(batch.query_lens_host)
            return super().build_metadata(batch)

    spec = attention_spec(16)
    linear = TorchLinear(LinearSpec(dtype=spec.dtype, device=spec.device))
    parts = ModelParts(
        spec=spec,
        decoder=decoder(),
        attention=Watching(spec),
        linear=linear,
        groups=one_group(CONFIG),
    )
    config = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens)
    run_largest_step(parts, config, num_drafts)
    assert CONFIG.max_position_embeddings == 256
    assert sorted(seen[0]) == sorted(expected)
