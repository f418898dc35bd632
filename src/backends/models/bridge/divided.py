"""One rank's part of a model of transformers, divided by transformers' own plan.

The plan names, for modules by pattern, how their matrices are divided. Matrices of queries, keys
and values are divided by KV head, as in weights/sharding.py; others evenly, as transformers does.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ....core.errors import ConfigError
from ...weights.checkpoint import Checkpoint
from ...weights.checkpoint_decorator import CheckpointDecorator
from ...weights.config.model_config import ModelConfig
from ...weights.packed import StoredTensor
from ...weights.sharding import Cut, Shard, divide_heads
from ..base import LoadOptions
from .model import BridgedModel
from .probe import probe

_CUT = {"colwise": 0, "rowwise": 1}
"""The dimension of a matrix that is divided. Results of "rowwise" are partial sums."""
_WHOLE = {
    "colwise_gather_output",
    "embedding_rowwise",
    "replicated_with_grad_allreduce",
    "rowwise_split_input",
}
"""Modules that take and give whole vectors: each rank computes all of them."""
_QUERIES, _KEYS = ("q_proj", "o_proj"), ("k_proj", "v_proj")

SumOverRanks = Callable[[torch.Tensor], None]


class Summed(torch.nn.Module):
    """A product of which each rank has some inputs. The partial sums are added up in float32."""

    def __init__(self, part: torch.nn.Linear, sum_over_ranks: SumOverRanks) -> None:
        super().__init__()
        self.part = part
        self._sum = sum_over_ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part: torch.Tensor = self.part(x)
        total = part.float().contiguous()
        self._sum(total)
        return total.to(part.dtype)


class DivisionPlan:
    """The division of a model by transformers, as far as it can be followed."""

    def __init__(self, model: Any, config: ModelConfig, shard: Shard, source: str) -> None:
        """`model`: the whole model, which may lack its weights. Raises ConfigError."""
        self._source, self._shard = source, shard
        self._styles: Mapping[str, str] = getattr(model, "tp_plan", None) or {}
        self._name = type(model).__name__
        unknown = {style for style in self._styles.values() if style not in _WHOLE | _CUT.keys()}
        if unknown:
            raise self._error(f"has {', '.join(sorted(unknown))}, which is not supported")
        if not _CUT.keys() & set(self._styles.values()):
            raise self._error("has no matrix to divide")
        if shard.size > config.num_heads:
            raise ConfigError(
                f"--tensor-parallel-size {shard.size}: the model has only {config.num_heads} "
                "query heads"
            )
        keys, queries = divide_heads(config, shard)
        size = config.head_size
        self._queries = Cut(queries.total * size, queries.start * size, queries.length * size)
        self._keys = Cut(keys.total * size, keys.start * size, keys.length * size)
        empty = copy.deepcopy(model)
        self.apply(empty, lambda part: None)
        self.config = replace(probe(empty, source), intermediate_size=config.intermediate_size)
        if self.config.num_heads not in (queries.length, config.num_heads):
            raise self._error("does not divide heads")

    def apply(self, model: Any, sum_over_ranks: SumOverRanks) -> None:
        """Cut the model's modules in place."""
        for name, module in list(model.named_modules()):
            style = self._style(name)
            if style is None:
                continue
            if not isinstance(module, torch.nn.Linear):
                raise self._error(f"divides {name}, a {type(module).__name__}")
            self._cut(module, name, _CUT[style])
            if style == "rowwise":
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, Summed(module, sum_over_ranks))

    def stored(self, name: str, whole: StoredTensor) -> StoredTensor:
        """The description of a tensor's part. Only weights of divided modules are not whole."""
        module, _, kind = name.rpartition(".")
        style = self._style(module)
        if style is None or kind != "weight":
            return whole
        shape = list(whole.shape)
        shape[_CUT[style]] = self._place(module, shape[_CUT[style]]).length
        return whole.resized(shape)

    def _style(self, name: str) -> str | None:
        """The division of a module. None: it stays whole."""
        style = self._styles.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        return style if style in _CUT else None

    def _cut(self, module: torch.nn.Linear, name: str, dim: int) -> None:
        cut = self._place(name, module.weight.shape[dim])
        module.weight = _parameter(module.weight.narrow(dim, cut.start, cut.length))
        module.out_features, module.in_features = module.weight.shape
        if module.bias is None:
            return
        if dim == 0:
            module.bias = _parameter(module.bias.narrow(0, cut.start, cut.length))
        elif self._shard.rank > 0:
            module.register_parameter("bias", None)  # only the first rank adds it

    def _place(self, name: str, total: int) -> Cut:
        child = name.rpartition(".")[2]
        for children, cut in ((_QUERIES, self._queries), (_KEYS, self._keys)):
            if child in children and total == cut.total:
                return cut
        share, rest = divmod(total, self._shard.size)
        if rest:
            raise self._error(f"cannot divide the {total} rows or columns of {name} evenly")
        return Cut(total, self._shard.rank * share, share)

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(
            f"--tensor-parallel-size {self._shard.size}: transformers' plan for {self._name} "
            f"({self._source}) {reason}"
        )


class DividedCheckpoint(CheckpointDecorator):
    """Describes one rank's part of a checkpoint. Tensors are read as a whole."""

    def __init__(self, inner: Checkpoint, plan: DivisionPlan) -> None:
        super().__init__(inner)
        self._plan, self.config = plan, plan.config

    def stored(self, name: str) -> StoredTensor:
        return self._plan.stored(name, self._inner.stored(name))


class DividedModels:
    """An implementation that loads one rank's part of a model; see ModelImpl."""

    name = "transformers"
    keeps_packed = is_divisible = False

    def __init__(
        self,
        load: Callable[[Checkpoint, LoadOptions], BridgedModel],
        plan: DivisionPlan,
        sum_over_ranks: SumOverRanks,
    ) -> None:
        """`load`: loads the whole model."""
        self._load = load
        self._plan = plan
        self._sum = sum_over_ranks

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> BridgedModel:
        """Load the whole model, and keep this rank's part."""
        model = self._load(checkpoint, options)
        self._plan.apply(model.model, self._sum)
        model.is_divided = True
        return model


def _parameter(part: torch.Tensor) -> torch.nn.Parameter:
    """A copy, so that the memory of the whole matrix can be freed."""
    return torch.nn.Parameter(part.detach().clone(), requires_grad=False)
