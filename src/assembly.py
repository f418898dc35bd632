"""Builds an engine's parts from a configuration.

This module may import every package of the engine. It only connects them and holds no logic.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core import kinds
from .core.config import EngineConfig
from .core.contract.client import STALL_SECONDS
from .core.contract.registry import ONLY_REPLICA, Replica
from .core.errors import TokenmillError
from .core.host.choice import choose_slot
from .core.host.plugin_host import PluginHost
from .core.host.plugin_set import enabled_plugins
from .core.interfaces import MediaInfo, MediaReader, Progress, Tokenizer, no_progress
from .core.processes.free_memory import return_free_memory
from .core.shell.engine_shell import EngineShell, MakeReader
from .core.shell.local_engine import EngineParts, LocalEngine, local_engine, refuse_replicas
from .core.supervised.client import supervised_engine

if TYPE_CHECKING:
    from .backends.distill.make import MadeDraft
    from .backends.drafting.support import Speculation
    from .backends.execution.base import ExecutorSpec
    from .backends.execution.identity import Identity
    from .backends.execution.in_process import ModelExecutor
    from .backends.execution.inspection import ModelReport
    from .backends.execution.workers.messages import StartRank
    from .backends.execution.workers.worker import RankModel
    from .backends.grammar.checking import GrammarChecker
    from .backends.grammar.grammars import Grammars
    from .backends.models.base import ModelImpl
    from .backends.running.parts.model_parts import Backends
    from .backends.text.tokenizer import HFTokenizer
    from .backends.weights.checkpoint import Checkpoint
    from .backends.weights.local_model import LocalModel
    from .backends.weights.quantized_cache.folder import CachedModel


def build_parts(
    config: EngineConfig,
    progress: Progress,
    *,
    plugins: Iterable[object] = (),
    replica: Replica = ONLY_REPLICA,
) -> EngineParts:
    """Build executor, tokenizer and plugins. Everything that can fail early does so before the
    weights are read.

    `plugins`: modules and objects of the embedding program. Raises ConfigError for an invalid
    configuration, model or plugin.
    """
    host = PluginHost.load(config, extra=plugins, replica=replica)
    with host.naming_computing():
        return _build_parts(config, host, progress)


def _build_parts(config: EngineConfig, host: PluginHost, progress: Progress) -> EngineParts:
    from .backends.execution.choice import make_executor
    from .backends.execution.workers.division import check_division

    backends = _choose_backends(host, progress)
    # First, because its errors about a wrong file are more precise.
    checkpoint, impl = _open_model(config, backends, progress)
    check_division(checkpoint, impl, config)
    tokenizer = _load_tokenizer(config, checkpoint.path, progress)
    grammars, checker = _make_grammars(host, tokenizer, checkpoint)
    spec = _executor_spec(config, host, backends, checkpoint, impl, grammars, tokenizer, progress)
    executor = make_executor(host, spec)
    _ = host.logits_processors  # built now: a request may use one that it does not name
    return EngineParts(executor=executor, tokenizer=tokenizer, plugins=host, grammars=checker)


def _executor_spec(
    config: EngineConfig,
    host: PluginHost,
    backends: Backends,
    checkpoint: Checkpoint,
    impl: ModelImpl,
    grammars: Grammars | None,
    tokenizer: HFTokenizer,
    progress: Progress,
) -> ExecutorSpec:
    from .backends.execution.base import ExecutorSpec
    from .backends.execution.rank_memory import refuse_model

    return ExecutorSpec(
        config=config,
        progress=progress,
        load=partial(
            _load_whole_model, config, host, backends, checkpoint, impl, grammars, tokenizer
        ),
        load_rank=f"{__name__}:load_rank",
        identify=partial(_identify, config, host, checkpoint),
        refuse_too_large=partial(refuse_model, checkpoint, config, backends, progress, impl),
        objects=host.computing_objects(),
    )


def load_rank(start: StartRank, progress: Progress) -> RankModel:
    """Load one rank's part of the model in a worker process, from the rank and the configuration:
    see ExecutorSpec."""
    from .backends.execution.workers.division import prepare_process

    prepare_process(start)
    host = PluginHost.load(start.config, watches=False)
    with host.naming_computing():
        return _load_rank(start, host, progress)


def _load_rank(start: StartRank, host: PluginHost, progress: Progress) -> RankModel:
    from .backends.execution.workers.division import count_parameters, divide
    from .backends.execution.workers.stages import StageExecutor
    from .backends.execution.workers.worker import RankModel

    config = start.config
    backends = _choose_backends(host, progress)
    checkpoint, impl = _open_model(config, backends, progress)
    # Only its tokens are needed: the file of a chat template may be on another machine.
    tokenizer = _load_tokenizer(replace(config, chat_template=None), checkpoint.path, progress)
    grammars, _ = _make_grammars(host, tokenizer, checkpoint)
    part, impl, link = divide(checkpoint, impl, start, progress)
    if grammars is not None and part.config.has_head:  # this rank samples
        # Not with the first grammar: llguidance stops all threads of the process meanwhile, on a
        # busy machine for seconds, and a worker without signs of life counts as hanging.
        grammars.prepare()
    executor = _load_model(config, host, backends, part, impl, grammars, tokenizer, progress)
    if start.size > 1:
        executor.info = replace(executor.info, num_parameters=count_parameters(checkpoint))
    identity = _identify(config, host, checkpoint)
    return RankModel(
        executor=executor if link is None else StageExecutor(executor, link),
        identity=identity,
        settle=executor.settle,
        after_step=host.flush,
    )


def _identify(config: EngineConfig, host: PluginHost, checkpoint: Checkpoint) -> Identity:
    from .backends.execution.identity import identify
    from .version import __version__

    return identify(__version__, checkpoint, host.plugins(), host.names, config)


def _load_whole_model(config: EngineConfig, *parts: Any) -> ModelExecutor:
    from .backends.execution.providers import refuse_one_process

    refuse_one_process(config)
    return _load_model(config, *parts)


def _load_model(
    config: EngineConfig,
    host: PluginHost,
    backends: Backends,
    checkpoint: Checkpoint,
    impl: ModelImpl,
    grammars: Grammars | None,
    tokenizer: HFTokenizer,
    progress: Progress,
) -> ModelExecutor:
    from .backends.execution.in_process import ModelExecutor

    return ModelExecutor.from_checkpoint(
        checkpoint,
        config,
        backends,
        progress,
        swaps=host.uses_swap,
        speculation=host.speculator,
        impl=impl,
        processors=host.logits_processors,
        tokenizer=tokenizer,
        grammars=grammars,
        reads_images=True,
    )


def _make_grammars(
    host: PluginHost, tokenizer: HFTokenizer, checkpoint: Checkpoint
) -> tuple[Grammars, GrammarChecker] | tuple[None, None]:
    from .backends.grammar.base import GrammarSpec
    from .backends.grammar.choice import make_grammars

    ends, size = checkpoint.eos_token_ids, checkpoint.config.vocab_size
    spec = GrammarSpec.of_model(tokenizer.all_token_bytes, tokenizer.special_ids, ends, size)
    return make_grammars(host, spec) or (None, None)


def _load_tokenizer(config: EngineConfig, model: Path, progress: Progress) -> HFTokenizer:
    from .backends.text.chat.given_template import read_chat_template
    from .backends.text.load import load_tokenizer
    from .backends.weights.hub.location import locate_model

    given = config.chat_template
    template = None if given is None else read_chat_template(given)
    if config.tokenizer:
        model = locate_model(config.tokenizer, allow_download=False, progress=progress)
    return load_tokenizer(model, template)


def _open_model(
    config: EngineConfig, backends: Backends, progress: Progress
) -> tuple[Checkpoint, ModelImpl]:
    from .backends.models.opening import open_model
    from .backends.weights.hub.location import locate_configured_model

    model = locate_configured_model(config, progress)
    return open_model(model, backends.models, config, backends.methods)


def _choose_backends(plugins: PluginHost, progress: Progress) -> Backends:
    from .backends.attention.choice import choose_attention_backend
    from .backends.linear.choice import choose_linear_backend
    from .backends.models.opening import choose_model_impl
    from .backends.running.parts.model_parts import Backends
    from .backends.weights.quantization.offered import offered_methods

    return Backends(
        choose_attention_backend(plugins, progress),
        choose_linear_backend(plugins, progress),
        choose_model_impl(plugins, progress),
        offered_methods(plugins.registry),
    )


def make_media_reader(config: EngineConfig, media: MediaInfo, tokenizer: Tokenizer) -> MediaReader:
    """The reader of images for a model, in the process that reads requests.

    Raises ConfigError if no media processor fits the model, and for wrong --mm-processor-kwargs.
    """
    from .backends.media.choice import make_image_reader

    plugins = enabled_plugins(config)
    kwargs = config.mm_processor_kwargs or {}
    assert not isinstance(kwargs, str), "EngineConfig has read it"
    return make_image_reader(
        plugins.registry,
        choose_slot(kinds.MEDIA_PROCESSOR.name, config, plugins),
        media,
        tokenizer,
        kwargs=kwargs,
        max_pixels=config.max_image_pixels,
        cache_bytes=config.media_cache_bytes,
    )


def build_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    replica: Replica = ONLY_REPLICA,
    *,
    warns: bool = True,
    make_reader: MakeReader | None = make_media_reader,
) -> EngineShell:
    """An engine that has not been started. `warns` and `make_reader`: see EngineShell."""
    build = partial(build_parts, replica=replica)
    return local_engine(
        config, build, progress or no_progress, warns=warns, make_reader=make_reader
    )


def build_supervised_engine(
    config: EngineConfig,
    progress: Progress,
    *,
    stall_timeout: float = STALL_SECONDS,
    max_restarts: int = 5,
) -> EngineShell:
    """`data_parallel_size` engines, each in a process of its own, not started yet. This process
    needs no torch.

    Raises ConfigError if the machine has too few cores or GPUs.
    """
    from .backends.machine.places import place_replicas

    return supervised_engine(
        config,
        places=place_replicas(config.data_parallel_size, config.device, config.num_ranks),
        target=f"{__name__}:run_engine_process",
        load_tokenizer=_load_tokenizer_again,
        progress=progress,
        stall_timeout=stall_timeout,
        max_restarts=max_restarts,
        lost_steps=_lost_steps(),
        make_reader=make_media_reader,
    )


def _lost_steps() -> Path | None:
    """The folder for the last steps of engines that are lost."""
    try:
        return cache_folder() / "lost-engines"
    except TokenmillError:  # there is no home directory
        return None


def run_engine_process(control: socket.socket, logs: socket.socket) -> None:
    """The engine process: see `build_supervised_engine`."""
    from .core.supervised.engine_process import run_engine

    run_engine(control, logs, partial(build_engine, warns=False, make_reader=None))


def _load_tokenizer_again(config: EngineConfig) -> HFTokenizer:
    """Load the tokenizer of an engine in another process, which has downloaded all files."""
    from .backends.weights.files.model_path import find_model
    from .backends.weights.hub.location import locate_configured_model

    config = replace(config, allow_download=False)
    model = locate_configured_model(config, no_progress)
    find_model(model)  # its errors about a wrong path are more precise than the tokenizer's
    tokenizer = _load_tokenizer(config, model, no_progress)
    return_free_memory()  # 12 MB, which only loading needed
    return tokenizer


class AsyncEngine(EngineShell):
    """The engine for programs that embed it: `async with AsyncEngine(model, **options) as engine`.

    `model`: a directory, a GGUF file or ORG/NAME of the Hugging Face hub; None: the default model.
    `plugins`: policies and observers, as objects or as modules with `register`. They need no
    package. `progress` is called with the name of a stage of the start and the fraction of it that
    is done. `options`: fields of EngineConfig, with the names of the command line's flags. Raises
    ConfigError for an unknown or invalid option.

    The model is loaded at the start. All requests run in one batch, so submit many at once. Its
    coroutines belong to the event loop in which it was started: another loop, a fork of the process
    and trio get a WrongContextError.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        plugins: Iterable[object] = (),
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        build = partial(build_parts, plugins=tuple(plugins))
        config = EngineConfig.from_options(model=model, **options)
        refuse_replicas(config)
        running = LocalEngine(config, build, progress or no_progress)
        super().__init__(config, running, make_reader=make_media_reader)


def make_draft_model(
    config: EngineConfig,
    output: Path,
    progress: Progress,
    *,
    prompts_file: Path | None = None,
    **recipe: Any,
) -> MadeDraft:
    """Derive a draft model from the configured model and write it to `output`.

    `recipe`: fields of DraftRecipe. Raises ConfigError for an invalid configuration or recipe.
    """
    from .backends.distill.make import DraftRecipe, make_draft
    from .backends.distill.prompts import read_prompts
    from .backends.execution.in_process import ModelExecutor

    wanted = DraftRecipe(**recipe)
    prompts = None if prompts_file is None else read_prompts(prompts_file)
    plugins = PluginHost.load(config)
    backends = _choose_backends(plugins, progress)
    checkpoint, impl = _open_model(config, backends, progress)
    tokenizer = _load_tokenizer(config, checkpoint.path, progress)

    def load(speculation: Speculation | None) -> ModelExecutor:
        return ModelExecutor.from_checkpoint(
            checkpoint, config, backends, progress, speculation=speculation, impl=impl
        )

    return make_draft(checkpoint, tokenizer, load, output, wanted, prompts, progress)


def record_draft(folder: Path) -> None:
    """Remember where a draft model was written, for `list_local_models`."""
    from .backends.weights.draft_record import record_draft

    record_draft(folder)


def inspect_model(config: EngineConfig, progress: Progress) -> ModelReport:
    """Describe the configured model, and how it would be served, without reading its weights.

    Raises ConfigError if the engine would refuse it for another reason than its size.
    """
    from .backends.execution.choice import choose_executor
    from .backends.execution.inspection import inspect_model
    from .backends.execution.workers.division import check_division
    from .backends.machine.places import place_replicas

    # Raises ConfigError as `serve` does.
    place_replicas(config.data_parallel_size, config.device, config.num_ranks)
    host = PluginHost.load(config)
    backends = _choose_backends(host, progress)
    checkpoint, impl = _open_model(config, backends, progress)
    check_division(checkpoint, impl, config)
    # Raises ConfigError if it is not supported.
    tokenizer = _load_tokenizer(config, checkpoint.path, progress)
    spec = _executor_spec(config, host, backends, checkpoint, impl, None, tokenizer, progress)
    executor, _ = choose_executor(host, spec)
    return inspect_model(checkpoint, config, backends, progress, impl, executor)


def verify_default_model(progress: Progress) -> Path:
    """Check the SHA-256 of the default model, and return its path.

    Raises ConfigError if it is not installed or is damaged.
    """
    from .backends.weights import default_model

    path = default_model.find_default_model()
    default_model.verify_default_model(path, progress)
    return path


def list_local_models() -> list[LocalModel]:
    """Describe the default model, the hub's cache, quantized copies and drafts."""
    from .backends.weights.listing import list_local_models

    return list_local_models()


def list_cached_models() -> list[CachedModel]:
    """Describe the models that --quantize-on-load has kept. The last one was used last."""
    from .backends.weights.quantized_cache.folder import list_models

    return list_models()


def remove_cached_models(names: Sequence[str] | None) -> None:
    """Remove models from the cache; None: all. Raises ConfigError for an unknown name."""
    from .backends.weights.quantized_cache.folder import remove_models

    remove_models(names)


def cache_folder() -> Path:
    """The folder of what tokenmill keeps for this user, which may not exist yet.

    Raises TokenmillError if the user has no home directory.
    """
    from .backends.machine.compiling import cache_folder

    return cache_folder()


def num_compute_threads() -> int:
    """Number of threads that compute on the CPU in this process."""
    import torch

    return torch.get_num_threads()
