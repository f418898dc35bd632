"""One rank's part of a model: a checkpoint that shows some heads, feed-forward columns and logits.

The products with o_proj and down_proj then give partial sums, which the ranks add up. Query heads
that share a KV head stay together, so ranks may have unequal numbers of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import torch

from ...core.errors import ConfigError
from .checkpoint import Checkpoint
from .checkpoint_decorator import CheckpointDecorator
from .config.model_config import ModelConfig
from .packed import StoredTensor, Weights, stack

LANES = 16
"""Feed-forward columns are divided in multiples of this number, if possible: kernels compute 16
columns at once."""
_PANEL = 32
"""The same for logits: kernels compute 32 rows of a matrix at once."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One of `size` ranks that compute a model together."""

    rank: int
    size: int
    whole_experts: bool = False
    """Whether each rank has some experts as a whole, instead of some columns of every expert."""


class Axis(Enum):
    """The units that a dimension of a matrix consists of."""

    QUERIES = auto()
    KEYS = auto()
    """Keys or values."""
    INNER = auto()
    """Columns of the feed-forward network."""
    HEADS = auto()
    """Query heads, one number each."""
    LOGITS = auto()


_ROWS = {
    "q_proj": (Axis.QUERIES,),
    "k_proj": (Axis.KEYS,),
    "v_proj": (Axis.KEYS,),
    "qkv_proj": (Axis.QUERIES, Axis.KEYS, Axis.KEYS),
    "gate_proj": (Axis.INNER,),
    "up_proj": (Axis.INNER,),
    "gate_up_proj": (Axis.INNER, Axis.INNER),
    "sinks": (Axis.HEADS,),
    "lm_head": (Axis.LOGITS,),
}
"""Tensors that are divided along their outputs, and what these outputs are, in order."""
_WHOLE_NORMS = {"q_norm": Axis.QUERIES, "k_norm": Axis.KEYS}
"""Norms that are divided if they are over all heads, see Features.whole_qk_norm."""
_COLUMNS = {"o_proj": Axis.QUERIES, "down_proj": Axis.INNER}
"""Matrices that are divided along their inputs. Only the first rank adds their biases."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part [start, start + length) of a dimension."""

    total: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class ShardedCheckpoint(CheckpointDecorator):
    """Shows one rank's part of a checkpoint, with a configuration that has the part's sizes."""

    def __init__(self, inner: Checkpoint, shard: Shard) -> None:
        """Raises ConfigError if the model cannot be divided."""
        super().__init__(inner)
        self._shard = shard
        config = inner.config
        if reasons := _reasons_against(config, shard.size):
            raise ConfigError(f"--tensor-parallel-size {shard.size}: {'; '.join(reasons)}")
        kv_heads, heads = divide_heads(config, shard)
        columns = Cut(config.intermediate_size, 0, config.intermediate_size)
        if config.experts is None:  # else the part has its columns or experts: see ExpertsPart
            unit = unit_of_columns(inner, _is_down, columns.total, shard)
            columns = divide(columns.total, unit, shard)
        logits = _divide_logits(config.num_logits, shard)
        size = config.head_size
        self._cuts = {
            Axis.QUERIES: Cut(heads.total * size, heads.start * size, heads.length * size),
            Axis.KEYS: Cut(kv_heads.total * size, kv_heads.start * size, kv_heads.length * size),
            Axis.INNER: columns,
            Axis.HEADS: heads,
            Axis.LOGITS: logits,
        }
        self.config = replace(
            config,
            num_heads=heads.length,
            num_kv_heads=kv_heads.length,
            intermediate_size=columns.length,
            logits_part=(logits.start, logits.length),
        )
        for name in inner.tensor_names():
            self._check(name)

    def stored(self, name: str) -> StoredTensor:
        inner = self._inner.stored(name)
        dim, cuts = self._cuts_of(name)
        if not cuts or (name.endswith("bias") and dim == 1):
            return inner
        shape = list(inner.shape)
        shape[dim] = sum(cut.length for cut in cuts)
        return inner.resized(shape)

    def tensor(self, name: str) -> torch.Tensor:
        dim, cuts = self._cuts_of(name)
        tensor = self._inner.tensor(name)
        if cuts and name.endswith("bias") and dim == 1:
            return tensor if self._shard.rank == 0 else torch.zeros_like(tensor)
        return _cut_tensor(tensor, dim, cuts) if cuts else tensor

    def matrix(self, name: str) -> Weights:
        dim, cuts = self._cuts_of(name)
        matrix = self._inner.matrix(name)
        if not cuts:
            return matrix
        if isinstance(matrix, torch.Tensor):
            return _cut_tensor(matrix, dim, cuts)
        return stack([matrix.narrow(dim, start, length) for start, length in _places(cuts)])

    def _cuts_of(self, name: str) -> tuple[int, Sequence[Cut]]:
        """The dimension that is divided, and the cut of each of its parts.

        Without cuts, the tensor is not divided.
        """
        *_, module, last = name.split(".")
        key = last if last in _ROWS else module
        if ".experts." in name:
            return 0, ()
        if key in _WHOLE_NORMS and self.config.features.whole_qk_norm:
            return 0, (self._cuts[_WHOLE_NORMS[key]],)
        if key in _COLUMNS:
            return 1, (self._cuts[_COLUMNS[key]],)
        return 0, tuple(self._cuts[axis] for axis in _ROWS.get(key, ()))

    def _check(self, name: str) -> None:
        """Raise ConfigError if packed weights would be cut inside a block."""
        dim, cuts = self._cuts_of(name)
        if dim == 0 or not name.endswith("weight"):
            return
        format = self._inner.stored(name).format
        block = 1 if isinstance(format, torch.dtype) else format.block_size
        for start, length in _places(cuts):
            if start % block or length % block:
                raise ConfigError(
                    f"--tensor-parallel-size {self._shard.size} would cut {name} inside a block "
                    f"of {block} columns: lower it, or use a file with smaller blocks"
                )


def _reasons_against(config: ModelConfig, size: int) -> list[str]:
    reasons = []
    if size > config.num_heads:
        reasons.append(f"the model has only {config.num_heads} query heads")
    if config.features.whole_qk_norm and size > config.num_kv_heads:
        reasons.append(
            f"the model has only {config.num_kv_heads} KV heads, and {config.architecture} needs "
            "one per rank"
        )
    return reasons


def divide(total: int, unit: int, shard: Shard, what: str = "feed-forward columns") -> Cut:
    """Divide a dimension into whole units. If they do not divide evenly, the first ranks get one
    more."""
    share, rest = divmod(total // unit, shard.size)
    if share == 0:
        raise ConfigError(
            f"--tensor-parallel-size {shard.size} is more than the model's {total // unit} blocks "
            f"of {unit} {what}: lower it"
        )
    start = shard.rank * share + min(shard.rank, rest)
    return Cut(total, start * unit, (share + (shard.rank < rest)) * unit)


def _divide_logits(num_logits: int, shard: Shard) -> Cut:
    has_panels = num_logits % _PANEL == 0 and num_logits // _PANEL >= shard.size
    return divide(num_logits, _PANEL if has_panels else 1, shard, "logits")


def first_logits(num_logits: int, size: int) -> tuple[int, ...]:
    """The first logit of each of `size` ranks, and the number of all logits."""
    cuts = (_divide_logits(num_logits, Shard(rank=rank, size=size)) for rank in range(size))
    return *(cut.start for cut in cuts), num_logits


def divide_heads(config: ModelConfig, shard: Shard) -> tuple[Cut, Cut]:
    """Divide KV heads, and the query heads that use them. With more ranks than KV heads, several
    ranks have the same KV head, and each has some of its query heads."""
    num_kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    if shard.size <= num_kv:
        kv_heads = divide(num_kv, 1, shard)
        heads = Cut(config.num_heads, kv_heads.start * group, kv_heads.length * group)
        return kv_heads, heads
    head = shard.rank * num_kv // shard.size
    first = -(-head * shard.size // num_kv)
    end = -(-(head + 1) * shard.size // num_kv)
    within = divide(group, 1, Shard(rank=shard.rank - first, size=end - first))
    heads = Cut(config.num_heads, head * group + within.start, within.length)
    return Cut(num_kv, head, 1), heads


def unit_of_columns(
    checkpoint: Checkpoint, is_down: Callable[[str], bool], columns: int, shard: Shard
) -> int:
    """Number of feed-forward columns that stay together: the block size of packed matrices, and a
    multiple of LANES if every rank then still gets columns. `is_down` finds the names of the
    matrices whose inputs are these columns."""
    formats = {
        checkpoint.stored(name).format for name in checkpoint.tensor_names() if is_down(name)
    }
    blocks = [one.block_size for one in formats if not isinstance(one, torch.dtype)]
    unit = math.lcm(*blocks)
    wider = math.lcm(unit, LANES)
    return wider if columns % wider == 0 and columns // wider >= shard.size else unit


def _is_down(name: str) -> bool:
    return name.endswith("down_proj.weight")


def _places(cuts: Sequence[Cut]) -> list[tuple[int, int]]:
    """Start and length of each cut, counted in the whole dimension."""
    found, offset = [], 0
    for cut in cuts:
        found.append((offset + cut.start, cut.length))
        offset += cut.total
    return found


def _cut_tensor(tensor: torch.Tensor, dim: int, cuts: Sequence[Cut]) -> torch.Tensor:
    """Copy the parts, so that the memory of the whole tensor can be freed."""
    parts = [tensor.narrow(dim, start, length) for start, length in _places(cuts)]
    return torch.cat(parts, dim)
