"""The native implementation of models: one decoder, by configuration."""

from __future__ import annotations

from functools import partial

from ....core.errors import ConfigError
from ...weights.checkpoint import Checkpoint, open_checkpoint
from ...weights.gguf.checkpoint import GGUFCheckpoint
from ...weights.gguf.config import find_row
from ...weights.huggingface.checkpoint import SafetensorsCheckpoint
from ...weights.huggingface.config import from_hf_config
from ..base import LoadOptions, ModelSpec
from .decoder import Decoder
from .loader import load_decoder
from .random_weights import RandomTensors


class NativeModels:
    """The architectures of weights/architectures.py; see ModelImpl."""

    name = "native"
    keeps_packed = True
    is_divisible = True

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        """See ModelImpl. Of a GGUF file only the architecture is checked before it is opened."""
        try:
            if spec.gguf is not None:
                find_row(spec.gguf.metadata, str(spec.path))
            elif spec.fields:
                from_hf_config(spec.fields, source=str(spec.path / "config.json"))
        except ConfigError as error:
            return [str(error)]
        return []

    def open(self) -> Checkpoint:
        spec = self._spec
        if spec.gguf is not None:
            return GGUFCheckpoint(spec.path, spec.gguf)
        if spec.fields:
            seed = spec.random_seed
            make = None if seed is None else partial(RandomTensors, seed)
            return SafetensorsCheckpoint(spec.path, None, spec.fields, spec.methods, make)
        return open_checkpoint(spec.path)

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Decoder:
        return load_decoder(
            checkpoint,
            dtype=options.products.dtype,
            device=options.products.device,
            progress=options.progress,
            linear=options.linear,
            keeps_packed=options.keeps_packed,
            max_model_len=options.max_model_len,
        )
