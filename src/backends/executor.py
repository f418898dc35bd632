"""The executor of real models: loads one, sizes its KV cache, and runs plans."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import torch

from ..core.config import EngineConfig
from ..core.errors import ConfigError, DeviceError
from ..core.interfaces import ModelInfo, Progress
from ..core.log import get_logger
from ..core.plan import StepPlan, StepResult
from . import kv_cache
from .attention.base import AttentionSpec
from .device import choose_device, choose_dtype
from .models.loader import load_decoder
from .runner import ModelRunner
from .warmup import measure_activations
from .weights.checkpoint import Checkpoint, open_checkpoint
from .weights.default_model import find_default_model

log = get_logger("model")


class ModelExecutor:
    """Runs plans on the device; everything on the one thread that the engine gives it."""

    def __init__(self, info: ModelInfo, runner: ModelRunner) -> None:
        self.info = info
        self._runner: ModelRunner | None = runner

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        attention_backend: Any,
        progress: Progress,
        *,
        swaps: bool = False,
    ) -> Self:
        """Open the model, check what can be checked, then read the weights.

        `attention_backend` makes a backend when called with an AttentionSpec; `swaps` sets host
        memory aside for swapped requests. Raises ConfigError for a model, device, precision or
        memory that cannot work.
        """
        path = Path(config.model) if config.model else find_default_model()
        return cls.from_checkpoint(
            open_checkpoint(path), config, attention_backend, progress, swaps=swaps
        )

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        attention_backend: Any,
        progress: Progress,
        *,
        swaps: bool = False,
    ) -> Self:
        """As `load`, for a checkpoint that is open already."""
        started = time.monotonic()
        device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, checkpoint.dtype, device)
        spec = _attention_spec(checkpoint, config, dtype, device)
        reasons = attention_backend.reasons_against(spec)
        if reasons:
            raise ConfigError(
                f"attention backend {attention_backend.name!r} cannot serve this model: {'; '.join(reasons)}"
            )
        decoder = load_decoder(checkpoint, dtype=dtype, device=device, progress=progress)
        attention = attention_backend(spec)
        block_bytes = kv_cache.bytes_per_block(checkpoint.config, config.block_size, dtype)
        max_len = config.max_model_len or checkpoint.config.max_position_embeddings
        num_blocks = kv_cache.count_blocks(
            config,
            block_bytes,
            cuda_room=measure_activations(decoder, config, device)
            if device.type == "cuda"
            else None,
            block_limit=config.max_num_seqs * -(-max_len // config.block_size),
        )
        num_host_blocks = kv_cache.count_host_blocks(config, block_bytes) if swaps else 0
        cache = kv_cache.allocate(
            attention,
            num_layers=checkpoint.config.num_layers,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=config.block_size,
            dtype=dtype,
            device=device,
        )
        info = ModelInfo(
            name=checkpoint.name,
            architecture=checkpoint.config.architecture,
            dtype=str(dtype).removeprefix("torch."),
            device=str(device),
            vocab_size=checkpoint.config.vocab_size,
            max_model_len=checkpoint.config.max_position_embeddings,
            eos_token_ids=checkpoint.eos_token_ids,
            num_parameters=decoder.num_parameters,
            block_size=config.block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            kv_bytes_per_block=block_bytes,
            attention_backend=attention_backend.name,
            sampling_defaults=dict(checkpoint.sampling_defaults),
        )
        log.info(
            "model_loaded",
            model=info.name,
            dtype=info.dtype,
            device=info.device,
            num_parameters=info.num_parameters,
            weights_mib=round(info.num_parameters * dtype.itemsize / 2**20),
            kv_cache_mib=round(num_blocks * block_bytes / 2**20),
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            seconds=round(time.monotonic() - started, 1),
        )
        return cls(info, ModelRunner(decoder, attention, cache))

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. Raises DeviceError when the device cannot go on."""
        assert self._runner is not None, "the executor is closed"
        try:
            return self._runner.run(plan)
        except torch.cuda.OutOfMemoryError:
            raise
        except torch.AcceleratorError as error:
            raise DeviceError(f"the device failed: {type(error).__name__}") from error

    def close(self) -> None:
        """Let go of weights and KV cache."""
        self._runner = None
        if self.info.device.startswith("cuda"):
            torch.cuda.empty_cache()


def _attention_spec(
    checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype, device: torch.device
) -> AttentionSpec:
    model = checkpoint.config
    return AttentionSpec(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        block_size=config.block_size,
        dtype=dtype,
        device=device,
        scale=model.head_size**-0.5,
        sliding_window=model.sliding_window,
    )
