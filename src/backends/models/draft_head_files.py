"""Reads draft heads: config.json and model.safetensors, as `tokenmill draft make` writes them.

Shape suffixes: d logits of the head.
"""

from __future__ import annotations

from pathlib import Path

import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from ...core.errors import ConfigError
from ..linear.base import LinearBackend, LinearSpec
from ..weights.config.fields import Fields
from ..weights.config.model_config import DRAFT_HEAD
from ..weights.draft_vocabulary import DRAFT_TO_TARGET, check_draft_vocabulary
from ..weights.files.json_file import read_json
from ..weights.files.safetensors_files import SafetensorsFiles
from ..weights.formats.gguf_blocks import GGUFBlocks, gguf_weights
from ..weights.packed import PackedWeights, Weights
from .draft_head import HIDDEN_ACT, DraftHead, DraftHeadConfig
from .native.decoder import RMSNorm

_FORMAT = GGUFBlocks(GGMLQuantizationType.Q8_0)
"""Matrices are rounded to this kind if the products support it: it halves the memory to read, and
drafts need not be exact."""


class DraftHeadFiles:
    """The directory of a draft head."""

    def __init__(self, path: Path) -> None:
        """Open the files. Raises ConfigError when one is missing, damaged or of no draft head."""
        self.path = path
        self._fields = Fields(read_json(path / "config.json"), str(path / "config.json"))
        self.config = _read_config(self._fields)
        self._tensors = SafetensorsFiles(path)
        wanted = {*self.config.tensor_shapes, DRAFT_TO_TARGET}
        found = set(self._tensors.tensor_names())
        if found != wanted:
            raise ConfigError(
                f"{path} is not a draft head: it lacks the tensors {_listed(wanted - found)}, and "
                f"has unknown tensors {_listed(found - wanted)}"
            )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def made_for(self) -> str:
        """Name of the target model."""
        return self._fields.text("made_for", "")

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor. Raises ConfigError when its shape or type is wrong."""
        tensor, shape = self._tensors.tensor(name), self.config.tensor_shapes[name]
        if tuple(tensor.shape) != shape or tensor.dtype not in (torch.bfloat16, torch.float32):
            raise ConfigError(
                f"{name} of {self.path} is {tensor.dtype} {list(tensor.shape)}; "
                f"it must be bfloat16 or float32 {list(shape)}"
            )
        return tensor

    def token_ids(self) -> torch.Tensor:
        """Read the target's token id of each logit, int64 [d]. Raises ConfigError if damaged."""
        config = self.config
        offsets_d = self._tensors.tensor(DRAFT_TO_TARGET)
        return check_draft_vocabulary(
            offsets_d, config.draft_vocab_size, config.vocab_size, self.path
        )

    def load(self, makes: LinearBackend, spec: LinearSpec) -> DraftHead:
        """Load the head; matrices have 8 bits if `makes` keeps those."""

        def take(name: str) -> Weights:
            weights = self.tensor(f"{name}.weight")
            if makes.keeps(spec, _FORMAT) and weights.shape[1] % _FORMAT.block_size == 0:
                return _quantize(weights)
            return weights.to(spec.device, spec.dtype)

        norm = self.tensor("norm.weight").to(spec.device, spec.dtype)
        return DraftHead(
            fc=makes.linear([take("fc")], None),
            gate_up=makes.gate_up(take("mlp.gate_proj"), take("mlp.up_proj"), None, HIDDEN_ACT),
            down=makes.linear([take("mlp.down_proj")], None),
            norm=RMSNorm(norm, self.config.rms_norm_eps),
            lm_head=makes.head(take("lm_head")),
        )


def _quantize(weights: torch.Tensor) -> PackedWeights:
    blocks = quantize(weights.float().numpy(), _FORMAT.kind)
    return gguf_weights(_FORMAT.kind, torch.from_numpy(blocks))


def is_draft_head(path: Path) -> bool:
    """Whether the config.json of a directory is that of a draft head."""
    config = path.expanduser() / "config.json"
    return config.is_file() and read_json(config).get("model_type") == DRAFT_HEAD


def _read_config(fields: Fields) -> DraftHeadConfig:
    """Read the sizes of a draft head. Raises ConfigError."""
    config = DraftHeadConfig(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        draft_vocab_size=fields.integer("draft_vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
    )
    sizes = config.hidden_size, config.intermediate_size, config.draft_vocab_size
    if min(sizes) < 1 or config.draft_vocab_size > config.vocab_size:
        raise ConfigError(f"{fields.source} has sizes that no draft head can have: {config}")
    return config


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:4]) or "nothing"
