"""A model's decoder and attention backend. Target and draft models are loaded in the same way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import Progress
from ..attention.base import AttentionBackend, AttentionSpec
from ..attention.reasons import reasons_against
from ..linear.projections import Projections
from ..machine.device import choose_device
from ..models.decoder import Decoder
from ..models.loader import load_decoder
from ..state import kv_cache
from ..state.kv_cache import KVCache
from ..weights.checkpoint import Checkpoint
from .precision import choose_dtype, choose_kv_cache_dtype
from .runner import StepModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """Weights and attention of one model. The KV cache is allocated after all models are loaded."""

    spec: AttentionSpec
    decoder: Decoder
    attention: AttentionBackend

    @property
    def bytes_per_block(self) -> int:
        """Size of one block of the KV cache."""
        model, spec = self.decoder.config, self.spec
        return kv_cache.bytes_per_block(model, spec.block_size, spec.cache_dtype)

    def allocate_cache(self, num_blocks: int, num_host_blocks: int) -> KVCache:
        """Allocate the model's KV cache. Raises ConfigError if a CPU has too little free memory."""
        return kv_cache.allocate(
            self.attention,
            num_layers=self.decoder.config.num_layers,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=self.spec.block_size,
            dtype=self.spec.cache_dtype,
            device=self.spec.device,
        )

    def step_model(self, cache: KVCache) -> StepModel | None:
        """The attention backend's own implementation of whole steps; None if it has none for this
        decoder."""
        if not hasattr(self.attention, "step_model"):
            return None
        model: StepModel | None = self.attention.step_model(self.decoder, cache)
        return model


def choose_spec(
    checkpoint: Checkpoint,
    config: EngineConfig,
    attention_backend: type[AttentionBackend],
    progress: Progress,
    called: str = "this model",
) -> AttentionSpec:
    """The specification of the attention that the model needs. Errors name the model `called`.

    Raises ConfigError if the backend cannot serve the model, precision or device.
    """
    model, device = checkpoint.config, choose_device(config.device)
    spec = AttentionSpec(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        block_size=config.block_size,
        dtype=choose_dtype(config.dtype, checkpoint.dtype, device),
        device=device,
        scale=model.attention_scale,
        sliding_window=model.sliding_window,
        kv_cache_dtype=choose_kv_cache_dtype(config.kv_cache_dtype),
    )
    reasons = reasons_against(attention_backend, spec, progress)
    if reasons:
        raise ConfigError(
            f"attention backend {attention_backend.name!r} cannot serve {called}: "
            f"{'; '.join(reasons)}"
        )
    return spec


def load_parts(
    checkpoint: Checkpoint,
    config: EngineConfig,
    attention_backend: type[AttentionBackend],
    spec: AttentionSpec,
    progress: Progress,
) -> ModelParts:
    """Load the weights, and create the attention backend."""
    decoder = load_decoder(
        checkpoint,
        dtype=spec.dtype,
        device=spec.device,
        progress=progress,
        projections=choose_projections(
            checkpoint.config.hidden_act,
            spec,
            keeps_quantized=config.dtype == "auto",
            progress=progress,
        ),
    )
    return ModelParts(spec=spec, decoder=decoder, attention=attention_backend(spec))


def choose_projections(
    hidden_act: str, spec: AttentionSpec, *, keeps_quantized: bool, progress: Progress
) -> Projections | None:
    """Native projections for bfloat16 on a CPU; None to use torch's, the reference for float32."""
    if spec.device.type != "cpu" or spec.dtype is not torch.bfloat16:
        return None
    from ..cpu.projections import native_projections

    return native_projections(hidden_act, keeps_quantized=keeps_quantized, progress=progress)
