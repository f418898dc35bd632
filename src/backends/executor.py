"""The executor of real models: loads one, sizes its KV cache, and runs plans."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import torch

from ..core.config import EngineConfig
from ..core.errors import ConfigError, DeviceError
from ..core.interfaces import ModelInfo, Progress
from ..core.log import get_logger
from ..core.plan import StepPlan, StepResult
from . import kv_cache
from .attention.base import AttentionBackend, AttentionSpec
from .attention.pair import AttentionChoice, as_one
from .device import choose_device, choose_dtype
from .models.decoder import Decoder
from .models.loader import load_decoder
from .models.projections import Projections
from .runner import ModelRunner, StepModel
from .warmup import measure_gpu_memory
from .weights.checkpoint import Checkpoint, open_checkpoint
from .weights.default_model import find_default_model

log = get_logger("model")


class ModelExecutor:
    """Runs plans on the device; everything on the one thread that the engine gives it.

    On a CPU it computes with as many threads as torch has been given when the first one is made:
    one per core, unless OMP_NUM_THREADS or torch.set_num_threads say otherwise. While native kernels
    compute all of a model, torch itself has one thread in this process.
    """

    def __init__(
        self, info: ModelInfo, runner: ModelRunner, torch_threads: int | None = None
    ) -> None:
        """`torch_threads` is what torch gets back at `close`; None: it was left alone."""
        self.info = info
        self._torch_threads = torch_threads
        self._runner: ModelRunner | None = runner

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        attention_backend: AttentionChoice,
        progress: Progress,
        *,
        swaps: bool = False,
    ) -> Self:
        """Open the model, check what can be checked, then read the weights.

        `swaps` sets host memory aside for swapped requests. Raises ConfigError for a model,
        device, precision or memory that cannot work.
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
        attention_backend: AttentionChoice,
        progress: Progress,
        *,
        swaps: bool = False,
    ) -> Self:
        """As `load`, for a checkpoint that is open already."""
        started = time.monotonic()
        backend: type[AttentionBackend] = as_one(attention_backend)
        _build_native_library(config, backend, progress)
        layout = _lay_out(checkpoint, config, backend, swaps)
        decoder = load_decoder(
            checkpoint,
            dtype=layout.spec.dtype,
            device=layout.spec.device,
            progress=progress,
            projections=_choose_projections(checkpoint, config, layout.spec, progress),
        )
        attention = backend(layout.spec)
        num_blocks = layout.num_blocks or _count_blocks(decoder, attention, config, layout)
        cache = kv_cache.allocate(
            attention,
            num_layers=checkpoint.config.num_layers,
            num_blocks=num_blocks,
            num_host_blocks=layout.num_host_blocks,
            block_size=config.block_size,
            dtype=layout.spec.dtype,
            device=layout.spec.device,
        )
        info = _describe(checkpoint, decoder, attention, layout, num_blocks)
        _log_loaded(info, decoder, time.monotonic() - started)
        model = _whole_call(decoder, attention, cache)
        torch_threads = None
        if model is not None:
            # Between steps torch's threads would spin on the native ones' cores. torch knows no
            # smaller scope than the process for this.
            torch_threads = torch.get_num_threads()
            torch.set_num_threads(1)
        return cls(info, ModelRunner(decoder, attention, cache, model), torch_threads)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. Raises DeviceError when the device cannot go on."""
        assert self._runner is not None, "the executor is closed"
        try:
            return self._runner.run(plan)
        except torch.AcceleratorError as error:  # not OutOfMemoryError: the next step may need less
            reason = str(error).partition("\n")[0]
            raise DeviceError(f"the device failed and must be restarted: {reason}") from error

    def close(self) -> None:
        """Let go of weights and KV cache."""
        if self._runner is not None and self._torch_threads is not None:
            torch.set_num_threads(self._torch_threads)
        self._runner = None
        if self.info.device.startswith("cuda"):
            torch.cuda.empty_cache()


def _build_native_library(
    config: EngineConfig, attention_backend: type[AttentionBackend], progress: Progress
) -> None:
    """Where it may be needed, with progress to be seen; why it cannot be built is told by who needs it."""
    is_wanted = attention_backend.name in ("auto", "cpu")
    if is_wanted and choose_device(config.device).type == "cpu":
        from .cpu.build import BuildError
        from .cpu.library import load_library

        with suppress(BuildError):
            load_library(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What is known before the weights are read."""

    spec: AttentionSpec
    block_bytes: int
    num_blocks: int | None
    """None when the memory that the weights leave decides."""
    num_host_blocks: int


def _lay_out(
    checkpoint: Checkpoint,
    config: EngineConfig,
    attention_backend: type[AttentionBackend],
    swaps: bool,
) -> _Layout:
    """Everything that can be refused without the weights is refused here, with a ConfigError."""
    model = checkpoint.config
    if (config.max_model_len or 0) > model.max_position_embeddings:
        raise ConfigError(
            f"--max-model-len is {config.max_model_len} and the model was made for "
            f"{model.max_position_embeddings} tokens"
        )
    device = choose_device(config.device)
    spec = AttentionSpec(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        block_size=config.block_size,
        dtype=choose_dtype(config.dtype, checkpoint.dtype, device),
        device=device,
        scale=model.attention_scale,
        sliding_window=model.sliding_window,
    )
    reasons = attention_backend.reasons_against(spec)
    if reasons:
        raise ConfigError(
            f"attention backend {attention_backend.name!r} cannot serve this model: "
            f"{'; '.join(reasons)}"
        )
    block_bytes = kv_cache.bytes_per_block(model, config.block_size, spec.dtype)
    return _Layout(
        spec=spec,
        block_bytes=block_bytes,
        num_blocks=kv_cache.fixed_num_blocks(config, block_bytes),
        num_host_blocks=kv_cache.count_host_blocks(config, block_bytes) if swaps else 0,
    )


def _choose_projections(
    checkpoint: Checkpoint, config: EngineConfig, spec: AttentionSpec, progress: Progress
) -> Projections | None:
    """Native ones for bfloat16 on a CPU; float32 stays with torch, the reference."""
    if spec.device.type != "cpu" or spec.dtype is not torch.bfloat16:
        return None
    from .cpu.projections import native_projections

    return native_projections(
        checkpoint.config.hidden_act, keeps_quantized=config.dtype == "auto", progress=progress
    )


def _whole_call(
    decoder: Decoder, attention: AttentionBackend, cache: kv_cache.KVCache
) -> StepModel | None:
    """All layers in one native call, where every part of the decoder is native."""
    if attention.name != "cpu":
        return None
    from .cpu.decoder_call import make_decoder_call

    return make_decoder_call(decoder, attention, cache)


def _count_blocks(
    decoder: Decoder, attention: AttentionBackend, config: EngineConfig, layout: _Layout
) -> int:
    spec = layout.spec
    if spec.device.type == "cpu":
        return kv_cache.count_cpu_blocks(config, decoder.config, layout.block_bytes)
    memory = measure_gpu_memory(decoder, attention, config, spec.dtype, spec.device)
    log.info(
        "gpu_memory",
        total_mib=memory.total >> 20,
        used_elsewhere_mib=memory.used_elsewhere >> 20,
        weights_mib=memory.weights >> 20,
        activations_mib=memory.activations >> 20,
    )
    return kv_cache.count_gpu_blocks(config, decoder.config, layout.block_bytes, memory)


def _describe(
    checkpoint: Checkpoint,
    decoder: Decoder,
    attention: AttentionBackend,
    layout: _Layout,
    num_blocks: int,
) -> ModelInfo:
    return ModelInfo(
        name=checkpoint.name,
        architecture=checkpoint.config.architecture,
        dtype=str(layout.spec.dtype).removeprefix("torch."),
        device=str(layout.spec.device),
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=checkpoint.config.max_position_embeddings,
        eos_token_ids=checkpoint.eos_token_ids,
        num_parameters=decoder.num_parameters,
        block_size=layout.spec.block_size,
        num_blocks=num_blocks,
        num_host_blocks=layout.num_host_blocks,
        kv_bytes_per_block=layout.block_bytes,
        attention_backend=attention.name,
        sampling_defaults=dict(checkpoint.sampling_defaults),
    )


def _log_loaded(info: ModelInfo, decoder: Decoder, seconds: float) -> None:
    log.info(
        "model_loaded",
        model=info.name,
        dtype=info.dtype,
        device=info.device,
        num_parameters=info.num_parameters,
        weights_mib=decoder.num_bytes >> 20,
        kv_cache_mib=info.num_blocks * info.kv_bytes_per_block >> 20,
        swap_space_mib=info.num_host_blocks * info.kv_bytes_per_block >> 20,
        free_mib=psutil.virtual_memory().available >> 20,
        num_blocks=info.num_blocks,
        num_host_blocks=info.num_host_blocks,
        seconds=round(seconds, 1),
    )
