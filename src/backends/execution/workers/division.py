"""Divides a model among worker processes, one for each rank."""

from __future__ import annotations

from typing import cast

import torch

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.interfaces import Progress
from ....core.log import get_logger
from ....core.settings.declaration import flag
from ...cpu.native.library import load_library
from ...cpu.ranks import NativeRanks
from ...machine.compiling import BuildError
from ...machine.cpu_binding import bind, check_binding
from ...machine.device import choose_device, name_gpus
from ...machine.places import GPUS
from ...machine.threads import count_usable_cores
from ...models.base import ModelImpl, divides_itself
from ...models.pipeline_parallel import PipelineParallel
from ...models.tensor_parallel import Ranks, TensorParallel
from ...weights.checkpoint import Checkpoint
from ...weights.expert_sharding import part_of
from ...weights.sharding import HEAD, Shard
from ...weights.stages import StagedCheckpoint, StageLayers, divide_into_stages
from .group import BACKENDS, GroupRanks, all_agree, join_group
from .messages import StartRank
from .stages import StageLink

log = get_logger("engine")


def count_parameters(checkpoint: Checkpoint) -> int:
    """Number of parameters of the whole model, as its files have them. Tied embeddings count once,
    even if the head is quantized."""
    tied = {HEAD} if checkpoint.config.tie_word_embeddings else set()
    names = set(checkpoint.tensor_names()) - tied
    return sum(checkpoint.stored(name).num_elements for name in names)


def check_division(checkpoint: Checkpoint, impl: ModelImpl, config: EngineConfig) -> None:
    """Raise ConfigError if a model cannot be divided, before its weights are read."""
    if config.enable_expert_parallel and checkpoint.config.experts is None:
        raise ConfigError(
            f"--enable-expert-parallel: {checkpoint.config.architecture} has no experts; remove it"
        )
    if config.enable_expert_parallel and config.tensor_parallel_size == 1:
        raise ConfigError(
            "--enable-expert-parallel divides experts among the ranks of --tensor-parallel-size: "
            "give it, too"
        )
    check_binding(config.cpu_bind, config.num_ranks)
    _check_device(config)
    sizes = describe_sizes(config)
    if not sizes:
        return
    if not impl.is_divisible:
        raise ConfigError(
            f"{sizes}: the implementation {impl.name!r} (--model-impl), which would run this "
            "model, cannot divide it"
        )
    divide_among_ranks(checkpoint, impl, config)


def _check_device(config: EngineConfig) -> None:
    """Raise ConfigError if several processes would have one GPU."""
    number = config.num_ranks * config.data_parallel_size
    device = choose_device(config.device)
    if number > 1 and device.index is not None:
        raise ConfigError(
            f"--device {device} is a single device, but {number} processes would compute: give "
            f"--device {device.type}"
        )


def divide_among_ranks(
    checkpoint: Checkpoint, impl: ModelImpl, config: EngineConfig
) -> tuple[Checkpoint, ...]:
    """Each rank's part of a model. Raises ConfigError if the model cannot be divided."""
    return tuple(_part(checkpoint, impl, config, rank)[0] for rank in range(config.num_ranks))


def describe_sizes(config: EngineConfig) -> str:
    """The flags that ask for several ranks; "" for one rank."""
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    sizes = {name: getattr(config, name) for name in names}
    return " ".join(f"{flag(name)} {size}" for name, size in sizes.items() if size > 1)


def reasons_against_gpus(config: EngineConfig) -> list[str]:
    """A reason if this machine has fewer GPUs than ranks."""
    if config.num_ranks == 1 or choose_device(config.device).type != "cuda":
        return []
    number = len(name_gpus())
    if number >= config.num_ranks:
        return []
    return [
        f"{describe_sizes(config)} needs {config.num_ranks} GPUs, but {number} are visible "
        f"({GPUS}): lower the sizes, or give --device cpu"
    ]


def warn_of_few_cores(config: EngineConfig) -> None:
    """Log a warning if ranks on a CPU will have to share cores."""
    ranks, cores = config.num_ranks, count_usable_cores()
    if 1 < ranks > cores and choose_device(config.device).type == "cpu":
        log.warning(
            "more_ranks_than_cores",
            ranks=ranks,
            cores=cores,
            hint=f"ranks wait for each other: lower {describe_sizes(config)}",
        )


def prepare_process(start: StartRank) -> None:
    """Set the cores and threads of this process, and connect it to the other ranks."""
    start.place.enter()
    torch.set_num_threads(
        bind(start.config.cpu_bind, start.local_rank, start.local_size, start.num_threads)
    )
    if start.rendezvous is not None:
        device = choose_device(start.config.device)
        join_group(start.rendezvous, start.rank, start.size, BACKENDS[device.type])


def divide(
    checkpoint: Checkpoint, impl: ModelImpl, start: StartRank, progress: Progress
) -> tuple[Checkpoint, ModelImpl, StageLink | None]:
    """One rank's part of a model, the implementation that runs it, and its link to other stages."""
    part, shard, own = _part(checkpoint, impl, start.config, start.rank)
    # Decorators wrap an implementation that was already chosen: ModelImpl's constructor and
    # `reasons_against` are missing.
    if shard is not None:
        ranks = _connect(start, shard, progress)
        divided = (
            impl.divided(shard, ranks.sum)
            if divides_itself(impl)
            else TensorParallel(impl, shard, ranks)
        )
        impl = cast(ModelImpl, divided)
    if own is None:
        return part, impl, None
    step = start.config.tensor_parallel_size
    link = StageLink(
        None if own.is_first else start.rank - step,
        None if own.is_last else start.rank + step,
        choose_device(start.config.device),
    )
    return part, cast(ModelImpl, PipelineParallel(impl, own, link)), link


def _part(
    checkpoint: Checkpoint, impl: ModelImpl, config: EngineConfig, rank: int
) -> tuple[Checkpoint, Shard | None, StageLayers | None]:
    """One rank's part of a model. Ranks are numbered stage by stage."""
    size, num_stages = config.tensor_parallel_size, config.pipeline_parallel_size
    shard, own = None, None
    if num_stages > 1:
        if divides_itself(impl):
            raise ConfigError(
                f"--pipeline-parallel-size {num_stages}: the implementation {impl.name!r} "
                "(--model-impl), which would run this model, cannot divide its layers"
            )
        own = divide_into_stages(checkpoint, num_stages)[rank // size]
        checkpoint = StagedCheckpoint(checkpoint, own)
    if size > 1:
        shard = Shard(rank=rank % size, size=size, whole_experts=config.enable_expert_parallel)
        divides = impl.part if divides_itself(impl) else part_of
        checkpoint = divides(checkpoint, shard)
    return checkpoint, shard, own


def _connect(start: StartRank, shard: Shard, progress: Progress) -> Ranks:
    """The way in which the ranks of a stage add up their partial sums."""
    if choose_device(start.config.device).type == "cuda":
        return GroupRanks(start.rank, shard.size)
    native = _native_ranks(start, shard, progress)
    if all_agree(native is not None) and native is not None:
        return native
    log.warning(
        "ranks_add_up_over_sockets",
        reason="a rank has no native library, or no memory in common with the others",
    )
    return GroupRanks(start.rank, shard.size)


def _native_ranks(start: StartRank, shard: Shard, progress: Progress) -> NativeRanks | None:
    if start.exchange is None:
        return None
    try:
        return NativeRanks(load_library(progress), shard.rank, shard.size, start.exchange)
    except BuildError:
        return None
