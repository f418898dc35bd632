"""A model's decoder and attention backend. Target and draft models are loaded in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.interfaces import Progress
from ....core.log import get_logger
from ...attention.base import AttentionBackend, AttentionSpec
from ...attention.mixed import make_attention, reasons_against_layers
from ...linear.base import LinearBackend, LinearSpec
from ...linear.choice import reasons_against as reasons_against_linear
from ...machine.device import choose_device
from ...models.base import SINKS, LoadOptions, Model, ModelImpl
from ...state import kv_cache
from ...state.kv_cache import KVCache
from ...vision.reading import sees_ahead
from ...weights.checkpoint import Checkpoint
from ...weights.checkpoint_decorator import stored_dtype
from ...weights.config.kv_groups import KVGroups, one_group
from ...weights.config.model_config import ModelConfig
from ...weights.quantization.methods import METHODS, ReadMethod
from .memory_need import Keeping, refuse_too_large
from .precision import choose_dtype, choose_kv_cache_dtype, keeps_float16, log_rounding
from .whole_step import whole_step

if TYPE_CHECKING:
    from ...cpu.decoder_call import DecoderCall

log = get_logger("model")


@dataclass(frozen=True, slots=True)
class Backends:
    """The parts that compute a model: classes, or objects that are used like classes."""

    attention: type[AttentionBackend]
    linear: type[LinearBackend]
    models: type[ModelImpl]
    methods: Mapping[str, ReadMethod] = field(default_factory=lambda: METHODS)
    """The known quantization methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """Weights and attention of one model. The KV cache is allocated after all models are loaded."""

    spec: AttentionSpec
    decoder: Model
    attention: AttentionBackend
    linear: LinearBackend
    groups: KVGroups

    @property
    def bytes_per_block(self) -> int:
        """Size of one block of the KV cache."""
        model, spec = self.decoder.config, self.spec
        return kv_cache.bytes_per_block(model, spec.block_size, spec.cache_dtype, self.groups)

    def allocate_cache(self, num_blocks: int, num_host_blocks: int) -> KVCache:
        """Allocate the model's KV cache. Raises ConfigError if a CPU has too little free memory."""
        return kv_cache.allocate(
            self.attention,
            groups=self.groups,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=self.spec.block_size,
            dtype=self.spec.cache_dtype,
            device=self.spec.device,
        )

    def step_model(self, cache: KVCache) -> DecoderCall | None:
        """The call that computes a whole step of the model; None: it runs layer by layer."""
        return whole_step(self.decoder, self.attention, cache)


def choose_spec(
    checkpoint: Checkpoint,
    config: EngineConfig,
    backends: Backends,
    progress: Progress,
    called: str = "this model",
    *,
    reads_images: bool = False,
) -> AttentionSpec:
    """The specification of the attention that the model's first layer needs.

    Other layers may differ in their windows: see `layer_specs`. `called`: the model in errors.
    `reads_images`: serve the model's images, if it has a vision tower.
    Raises ConfigError if the backend cannot serve the model, precision or device.
    """
    model, device = checkpoint.config, choose_device(config.device)
    spec = AttentionSpec(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        block_size=config.block_size,
        dtype=choose_dtype(config.dtype, checkpoint.dtype, device, backends.linear),
        device=device,
        scale=model.attention_scale,
        sliding_window=model.layer_kinds[0].sliding_window,
        logits_soft_cap=model.attention_soft_cap,
        has_sinks=model.features.attention_sinks,
        sees_ahead=reads_images and sees_ahead(checkpoint, config),
        kv_cache_dtype=choose_kv_cache_dtype(config.kv_cache_dtype),
    )
    _refuse(
        f"attention backend {backends.attention.name!r}",
        called,
        reasons_against_layers(backends.attention, layer_specs(spec, model), progress),
    )
    _refuse(
        f"linear backend {backends.linear.name!r}",
        called,
        reasons_against_linear(backends.linear, linear_spec(spec, checkpoint), progress),
    )
    _refuse_no_effect(checkpoint, config, backends.linear, linear_spec(spec, checkpoint))
    return spec


def _refuse_no_effect(
    checkpoint: Checkpoint, config: EngineConfig, linear: type[LinearBackend], spec: LinearSpec
) -> None:
    """Raise ConfigError if matrices would be quantized and then dequantized."""
    format = checkpoint.dtype
    if config.quantize_on_load is None or isinstance(format, torch.dtype):
        return
    if not linear.keeps(spec, format):
        raise ConfigError(
            f"--quantize-on-load {config.quantize_on_load} has no effect here: linear backend "
            f"{linear.name!r} would dequantize {format.name}. Remove it, or use --device cpu"
        )


def layer_specs(spec: AttentionSpec, model: ModelConfig) -> list[AttentionSpec]:
    """The specification of every layer's attention. `spec` is the first layer's."""
    return [replace(spec, sliding_window=kind.sliding_window) for kind in model.layer_kinds]


def linear_spec(spec: AttentionSpec, checkpoint: Checkpoint | None = None) -> LinearSpec:
    """The specification of the products that go with an attention. Without a checkpoint, weights
    are not packed."""
    published = None if checkpoint is None else checkpoint.dtype
    format = None if isinstance(published, torch.dtype) else published
    return LinearSpec(dtype=spec.dtype, device=spec.device, format=format)


def keeping_of(
    config: EngineConfig,
    backends: Backends,
    spec: AttentionSpec,
    impl: ModelImpl,
    checkpoint: Checkpoint | None = None,
) -> Keeping:
    """The form in which the weights will be kept. `impl` runs the model; `checkpoint`: as in
    `linear_spec`."""
    is_packable = impl.keeps_packed
    return Keeping(
        linear=backends.linear,
        spec=linear_spec(spec, checkpoint),
        keeps_packed=is_packable and config.dtype in ("auto", "float16"),
        is_packable=is_packable,
    )


def _refuse(backend: str, called: str, reasons: Sequence[str]) -> None:
    if reasons:
        raise ConfigError(f"{backend} cannot serve {called}: {'; '.join(reasons)}")


def _sinks_of(model: Model, implementation: str) -> Sequence[torch.Tensor]:
    """Return the sinks of each layer. Raises ConfigError if the model does not have them."""
    sinks = SINKS.of(model)
    if len(sinks) != model.config.num_layers:
        raise ConfigError(
            f"model implementation {implementation!r} says that heads have sinks, but its model "
            f"has {len(sinks)} `sinks` for {model.config.num_layers} layers"
        )
    return sinks


def load_parts(
    checkpoint: Checkpoint,
    config: EngineConfig,
    backends: Backends,
    spec: AttentionSpec,
    progress: Progress,
    impl: ModelImpl,
    groups: KVGroups | None = None,
    *,
    reads_images: bool = False,
) -> ModelParts:
    """Load the weights, and create the backends. `impl` runs the model. `groups`: the groups of its
    layers; None: one group. `reads_images`: leave room for its vision tower, and for images.

    Raises ConfigError if the weights and one block of the KV cache are larger than the memory.
    """
    groups = groups or one_group(checkpoint.config)
    model = checkpoint.config
    block_bytes = kv_cache.bytes_per_block(model, spec.block_size, spec.cache_dtype, groups)
    keeping = keeping_of(config, backends, spec, impl, checkpoint)
    block_bytes *= len(groups.windows)
    refuse_too_large([checkpoint], config, keeping, block_bytes, reads_images=reads_images)
    products = linear_spec(spec, checkpoint)
    linear = backends.linear(products)
    is_possible = keeping.is_packable and keeps_float16(spec.device, backends.linear)
    log_rounding(stored_dtype(checkpoint), products, is_possible)
    options = LoadOptions(
        products=products,
        linear=linear,
        keeps_packed=keeping.keeps_packed,
        max_model_len=config.max_model_len,
        progress=progress,
    )
    decoder = impl.load(checkpoint, options)
    served, possible = (one.max_position_embeddings for one in (decoder.config, checkpoint.config))
    if config.max_model_len is None and served < possible:
        log.info("context_of_longrope", served=served, possible=possible, option="--max-model-len")
    original = checkpoint.config.longrope_context
    if original is not None and served > original:
        log.warning(
            "longrope_changes_short_prompts",
            served=served,
            original=original,
            reason="all sequences get the frequencies for long ones, as in vLLM",
            option=f"--max-model-len {original}",
        )
    specs = layer_specs(spec, decoder.config)
    attention = make_attention(backends.attention, specs, groups.group_of_layer)
    if spec.has_sinks:
        attention.use_sinks(_sinks_of(decoder, impl.name))
    return ModelParts(spec=spec, decoder=decoder, attention=attention, linear=linear, groups=groups)
