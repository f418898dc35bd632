"""The native implementation of models: one decoder, by configuration."""

from __future__ import annotations

from ...core.errors import ConfigError
from ..weights.checkpoint import Checkpoint
from ..weights.huggingface.config import from_hf_config
from ..weights.model_config import ModelConfig
from .base import LoadOptions, ModelSpec
from .decoder import Decoder
from .loader import load_decoder


class NativeModels:
    """The architectures of weights/architectures.py; see ModelImpl."""

    name = "native"

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        """See ModelImpl. A GGUF file is checked when it is opened."""
        if not spec.fields:
            return []
        try:
            from_hf_config(spec.fields, source=str(spec.path / "config.json"))
        except ConfigError as error:
            return [str(error)]
        return []

    def read_config(self) -> ModelConfig:
        return from_hf_config(self._spec.fields, source=str(self._spec.path / "config.json"))

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
