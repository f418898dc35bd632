"""The executor for real models: loads a model, sizes its KV cache, and runs step plans."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError, DeviceError
from ...core.host.logits_processors import LogitsProcessors
from ...core.interfaces import Computation, ModelInfo, Progress, Tokenizer
from ...core.log import get_logger
from ...core.plan import StepPlan, StepResult
from ...core.processes.free_memory import return_free_memory
from ...core.requests.media import MediaItem
from ..attention.base import AttentionBackend, AttentionSpec
from ..drafting.model_runner import DraftRunner
from ..drafting.support import DraftSupport, Speculation
from ..grammar.grammars import Grammars
from ..linear.base import LinearSpec
from ..machine.compiling import BuildError
from ..machine.device import choose_device
from ..machine.memory import usable_memory
from ..machine.step_regions import StepRegions
from ..machine.torch_threads import SingleTorchThread
from ..models.base import Model, ModelImpl, ModelSpec
from ..models.native.decoder import Decoder
from ..models.native.feed_forward import ExpertLoad
from ..models.pipeline_parallel import StagedDecoder
from ..running.checking.model_check import check_model
from ..running.graphs.graph_choice import capture_graphs, graph_bytes, graph_sizes
from ..running.image_model import ImageModel, RowsModel, has_sections
from ..running.layered_model import LayeredModel
from ..running.parts.model_parts import Backends, ModelParts, choose_spec, load_parts
from ..running.runner import ModelRunner
from ..running.stage_runner import StageRunner
from ..running.warmup import GPUUse, gpu_use, measure_gpu_memory
from ..sampling.processing.base import ProcessorSpec
from ..sampling.processing.calling import LogitsProcessing
from ..state import kv_cache
from ..state.kv_cache import KVCache
from ..vision.encoded_items import EncodedItems
from ..vision.reading import Vision, load_vision
from ..weights.checkpoint import Checkpoint
from ..weights.config.kv_groups import KVGroups, group_layers, one_group

log = get_logger("model")
WARM_UP = "warming up"
"""The stage that follows the weights: first steps, the size of the KV cache, its memory."""


class ModelExecutor:
    """Runs step plans on the device. The engine calls it from one thread only.

    On a CPU it computes with the number of threads that torch has when the first executor is made:
    one per core, unless OMP_NUM_THREADS or torch.set_num_threads changed it. While native kernels
    compute a whole model, torch itself has one thread in this process.
    """

    def __init__(
        self,
        info: ModelInfo,
        runner: ModelRunner | StageRunner,
        single_thread: SingleTorchThread | None = None,
        draft_runner: DraftRunner | None = None,
        drafts: DraftSupport | None = None,
        expert_load: ExpertLoad | None = None,
        regions: StepRegions | None = None,
    ) -> None:
        """`single_thread`: released at `close`; None leaves torch its threads. `draft_runner`: the
        draft model's runner, which follows each plan. `drafts`: stopped at `close`. `expert_load`:
        reported with each step. `regions`: reported with the steps that ask for them."""
        self.info = info
        self._single_thread = single_thread
        self._runner: ModelRunner | StageRunner | None = runner
        self._draft_runner = draft_runner
        self._drafts = drafts
        self._expert_load = expert_load
        self._regions = regions

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        backends: Backends,
        progress: Progress,
        *,
        swaps: bool = False,
        speculation: Speculation | None = None,
        impl: ModelImpl | None = None,
        processors: LogitsProcessors | None = None,
        tokenizer: Tokenizer | None = None,
        grammars: Grammars | None = None,
        reads_images: bool = False,
    ) -> Self:
        """Make an executor: check the configuration, then read the weights.

        `swaps`: reserve host memory for swapped requests. `speculation`: drafts tokens. `impl`:
        runs the model; None: what `backends` choose for a model without files. `processors`:
        change the logits of requests that ask for it; they need the `tokenizer`. `grammars`: follow
        the answers of constrained requests. `reads_images`: load the model's vision tower, if it
        has one.
        Raises ConfigError for a model, device, precision, amount of memory, draft model or logits
        processor that cannot work.
        """
        started = time.monotonic()
        num_drafts = 0 if speculation is None else speculation.limits.num_speculative_tokens
        build_cpu_library(config, progress)
        check_settings(checkpoint, config)
        spec = choose_spec(checkpoint, config, backends, progress, reads_images=reads_images)
        before = None if spec.device.type == "cpu" else gpu_use(spec.device)
        drafts = _prepare(speculation, checkpoint, config, backends, progress)
        layout = _lay_out(checkpoint, config, spec, drafts, swaps)
        if not checkpoint.config.has_head:
            speculation = drafts = None  # the last stage drafts
        impl = impl or backends.models(ModelSpec(path=checkpoint.path, fields={}))
        given = checkpoint, config, backends, spec, progress, impl, layout.groups
        parts = load_parts(*given, reads_images=reads_images)
        progress(WARM_UP, 0.0)
        vision = _load_vision(checkpoint, config, parts) if reads_images else None
        check_model(parts, config, load_seconds=time.monotonic() - started)
        if vision is not None and vision.is_wrapped:
            from ..running.checking.image_check import check_images  # and transformers

            check_images(parts, checkpoint, vision, config)
        sizes = _graph_sizes(parts, config)
        num_blocks = layout.num_blocks or _count_blocks(
            parts, config, layout, drafts, num_drafts, sizes, vision, before
        )
        cache = parts.allocate_cache(num_blocks, layout.num_host_blocks)
        info = _describe(checkpoint, parts, layout, num_blocks, speculation, vision)
        _log_loaded(info, parts.decoder, drafts, time.monotonic() - started)
        progress(WARM_UP, 1.0)
        own = parts.decoder
        load = own.expert_load if isinstance(own, Decoder | StagedDecoder) else None
        if not checkpoint.config.has_head:
            stage = parts.step_model(cache)
            images = _image_model(vision, parts, cache, stage)
            stage_runner = StageRunner(parts.decoder, parts.attention, cache, stage, images)
            single_thread = None if stage is None else SingleTorchThread()
            regions = None if stage is None else stage.regions
            return cls(info, stage_runner, single_thread, expert_load=load, regions=regions)
        model = parts.step_model(cache)
        regions = None if model is None else model.regions
        graphs = capture_graphs(parts, cache, sizes, progress) if sizes else None
        processing = None
        if processors is not None:
            assert tokenizer is not None, "logits processors get the tokenizer"
            own_spec = ProcessorSpec(
                vocab_size=info.vocab_size, tokenizer=tokenizer, device=spec.device
            )
            processing = LogitsProcessing(processors, own_spec)
        runner = ModelRunner(
            parts.decoder,
            parts.attention,
            cache,
            model or graphs,
            None if speculation is None else speculation.propose,
            needs_hidden_states=speculation is not None and speculation.needs_hidden_states,
            processing=processing,
            grammars=grammars,
            images=_image_model(vision, parts, cache, model),
            regions=regions,
        )
        draft_runner = None
        if drafts is not None:
            draft_runner = drafts.start(num_blocks, layout.num_host_blocks, runner)
        single_thread = None if model is None else SingleTorchThread()
        return cls(info, runner, single_thread, draft_runner, drafts, load, regions)

    def launch(self, plan: StepPlan) -> Computation:
        return Computation(self.run, plan)

    def health(self) -> None:
        """Always None: if the device is lost, a step raises DeviceError."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. Raises DeviceError when the device cannot go on."""
        assert self._runner is not None, "the executor is closed"
        try:
            self._begin_drafts(plan)
            if self._regions is not None:
                self._regions.begin(is_measured=plan.measures_regions)
            return self._with_reports(self._runner.run(plan))
        except torch.AcceleratorError as error:  # not OutOfMemoryError: the next step may need less
            reason = str(error).partition("\n")[0]
            raise DeviceError(f"the device failed and must be restarted: {reason}") from error

    def take_media(self, items: Sequence[MediaItem]) -> None:
        """Keep the pixels of a request's images; see TakesMedia. Called from the engine's thread,
        while a step may be computed."""
        assert self._runner is not None, "the executor is closed"
        self._runner.take_media(items)

    def settle(self, result: StepResult) -> None:
        """Take in the last stage's result of a step, if this is an earlier stage of a model."""
        assert isinstance(self._runner, StageRunner)
        self._runner.settle(result)

    def _with_reports(self, result: StepResult) -> StepResult:
        if self._expert_load is not None:
            result = replace(result, expert_tokens=self._expert_load.take())
        if self._regions is not None and self._regions.is_measured:
            result = replace(result, regions=self._regions.take())
        return result

    def _begin_drafts(self, plan: StepPlan) -> None:
        if self._draft_runner is None:
            return
        try:
            self._draft_runner.begin_step(plan)
        except BaseException:
            assert isinstance(self._runner, ModelRunner)
            self._runner.lose(plan)
            raise

    def close(self) -> None:
        """Free weights and KV cache."""
        if self._single_thread is not None:
            self._single_thread.release()
        if self._drafts is not None:
            self._drafts.stop()
        self._runner = self._draft_runner = None
        return_free_memory()
        if self.info.device.startswith("cuda"):
            torch.cuda.empty_cache()


def _load_vision(checkpoint: Checkpoint, config: EngineConfig, parts: ModelParts) -> Vision | None:
    if not isinstance(parts.decoder, Decoder | StagedDecoder):
        return None  # a model of another implementation takes no rows
    spec = LinearSpec(dtype=parts.spec.dtype, device=parts.spec.device)
    return load_vision(
        checkpoint,
        config,
        dtype=spec.dtype,
        device=spec.device,
        linear=type(parts.linear)(spec),
        attention=_patch_attention(parts),
    )


def _patch_attention(parts: ModelParts) -> type[AttentionBackend] | None:
    """Computes attention in the vision tower. None: torch does, which is as fast in float32."""
    if parts.spec.device.type != "cpu" or parts.spec.dtype is not torch.bfloat16:
        return None
    from ..cpu.attention import CPUAttention
    from ..cpu.projections import CPULinear

    return CPUAttention if isinstance(parts.linear, CPULinear) else None


def _image_model(
    vision: Vision | None, parts: ModelParts, cache: KVCache, model: RowsModel | None
) -> ImageModel | None:
    """Computes the steps with images. None: they are like other steps in this stage. `model`: the
    call that runs the decoder; None: it runs layer by layer."""
    decoder = parts.decoder
    is_later_stage = not decoder.config.has_embedding
    changes_all = parts.spec.sees_ahead or has_sections(decoder.config)
    if vision is None and not (is_later_stage and changes_all):
        return None
    assert isinstance(decoder, Decoder | StagedDecoder), "only its tower was loaded"
    runs = model or LayeredModel(decoder, parts.attention, cache)
    if vision is None:
        return ImageModel(decoder, runs, None)
    placeholder = vision.info.placeholder_token_id
    return ImageModel(decoder, runs, EncodedItems(vision.tower), placeholder)


def build_cpu_library(config: EngineConfig, progress: Progress) -> None:
    """Build the CPU library early, so that its progress is visible.

    The choice of a precision depends on the library. Failures are reported where the library is
    first used.
    """
    if choose_device(config.device).type == "cpu" and config.dtype != "float32":
        from ..cpu.native.library import load_library

        with suppress(BuildError):
            load_library(progress)


def check_settings(checkpoint: Checkpoint, config: EngineConfig) -> None:
    """Raise ConfigError if the model is a draft model or cannot serve --max-model-len."""
    model = checkpoint.config
    if (config.max_model_len or 0) > model.max_position_embeddings:
        raise ConfigError(
            f"--max-model-len is {config.max_model_len}, but the model was made for "
            f"{model.max_position_embeddings} tokens"
        )
    if model.draft_vocab_size is not None:
        raise ConfigError(
            f"{checkpoint.path} is a draft model, which knows only {model.draft_vocab_size} of "
            f"{model.vocab_size} tokens: give it as --speculative-model, and its target as --model"
        )


def _prepare(
    speculation: Speculation | None,
    checkpoint: Checkpoint,
    config: EngineConfig,
    backends: Backends,
    progress: Progress,
) -> DraftSupport | None:
    """Let the speculator load its draft model and other resources.

    Raises ConfigError if it cannot work. Returns None without speculation.
    """
    if speculation is None:
        return None
    most = speculation.limits.num_speculative_tokens
    support = DraftSupport(checkpoint, config, backends, progress, most)
    speculation.prepare(support)
    return support


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Sizes of the KV cache that are known before the weights are read."""

    groups: KVGroups
    block_bytes: int
    """Bytes of a KV block: the model's, and the draft model's if there is one."""
    num_blocks: int | None
    """None: depends on the memory that the weights leave free."""
    num_host_blocks: int


def _lay_out(
    checkpoint: Checkpoint,
    config: EngineConfig,
    spec: AttentionSpec,
    drafts: DraftSupport | None,
    swaps: bool,
) -> _Layout:
    """Compute the layout. Raises ConfigError if it cannot work, before the weights are read."""
    model, draft_bytes = checkpoint.config, 0 if drafts is None else drafts.bytes_per_block
    groups = group_layers(model, config.max_model_len)
    if drafts is not None and drafts.shares_blocks:  # the draft model may see more tokens
        groups = one_group(model, keeps_all=True)
    block_bytes = kv_cache.bytes_per_block(model, config.block_size, spec.cache_dtype, groups)
    block_bytes += draft_bytes
    return _Layout(
        groups=groups,
        block_bytes=block_bytes,
        num_blocks=kv_cache.fixed_num_blocks(config, block_bytes),
        num_host_blocks=kv_cache.count_host_blocks(config, block_bytes) if swaps else 0,
    )


def _graph_sizes(parts: ModelParts, config: EngineConfig) -> Sequence[int]:
    """The numbers of decodes that run as captured graphs."""
    if parts.spec.device.type != "cuda":
        return ()
    return graph_sizes(parts.decoder, parts.attention, config)


def _count_blocks(
    parts: ModelParts,
    config: EngineConfig,
    layout: _Layout,
    drafts: DraftSupport | None,
    num_drafts: int,
    graph_sizes: Sequence[int],
    vision: Vision | None,
    before: GPUUse | None,
) -> int:
    """`num_drafts`: draft tokens per request, which the last stage proposes. `before`: the use of
    the GPU's memory before anything was loaded; None on a CPU."""
    model, num_groups = parts.decoder.config, len(layout.groups.windows)
    if before is None:
        return kv_cache.count_cpu_blocks(config, model, layout.block_bytes, num_groups)
    span_tokens = 0 if vision is None else vision.info.largest_span_tokens
    memory = measure_gpu_memory(parts, config, before, num_drafts, span_tokens)
    more = graph_bytes(graph_sizes, model.vocab_size)
    more += 0 if drafts is None else drafts.probs_bytes(config.max_num_seqs)
    more += 0 if vision is None else vision.info.cache_bytes + vision.encoder_bytes
    memory = replace(memory, activations=memory.activations + more)
    log.info(
        "gpu_memory",
        total_mib=memory.total >> 20,
        free_mib=memory.free >> 20,
        weights_mib=memory.weights >> 20,
        activations_mib=memory.activations >> 20,
        libraries_mib=memory.other >> 20,
    )
    return kv_cache.count_gpu_blocks(config, model, layout.block_bytes, memory, num_groups)


def _describe(
    checkpoint: Checkpoint,
    parts: ModelParts,
    layout: _Layout,
    num_blocks: int,
    speculation: Speculation | None,
    vision: Vision | None,
) -> ModelInfo:
    return ModelInfo(
        name=checkpoint.name,
        architecture=checkpoint.config.architecture,
        dtype=str(parts.spec.dtype).removeprefix("torch."),
        device=str(parts.spec.device),
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=parts.decoder.config.max_position_embeddings,
        eos_token_ids=checkpoint.eos_token_ids,
        num_parameters=parts.decoder.num_parameters,
        hidden_size=parts.decoder.config.hidden_size,
        block_size=parts.spec.block_size,
        num_blocks=num_blocks,
        num_host_blocks=layout.num_host_blocks,
        kv_windows=layout.groups.windows,
        kv_bytes_per_block=layout.block_bytes,
        kv_cache_dtype=str(parts.spec.cache_dtype).removeprefix("torch."),
        attention_backend=parts.attention.name,
        linear_backend=parts.linear.name,
        drafts_need_lookahead=speculation is not None and speculation.limits.needs_lookahead,
        sampling_defaults=dict(checkpoint.sampling_defaults),
        media=None if vision is None else vision.info,
    )


def _log_loaded(
    info: ModelInfo, decoder: Model, drafts: DraftSupport | None, seconds: float
) -> None:
    named = {} if drafts is None or drafts.name is None else {"draft_model": drafts.name}
    log.info(
        "model_loaded",
        model=info.name,
        dtype=info.dtype,
        device=info.device,
        num_parameters=info.num_parameters,
        weights_mib=decoder.num_bytes >> 20,
        kv_cache_dtype=info.kv_cache_dtype,
        kv_cache_mib=info.num_blocks * info.kv_bytes_per_block >> 20,
        swap_space_mib=info.num_host_blocks * info.kv_bytes_per_block >> 20,
        free_mib=usable_memory() >> 20,
        num_blocks=info.num_blocks,
        num_host_blocks=info.num_host_blocks,
        seconds=round(seconds, 1),
        **named,
    )
