"""The supported quantization methods, and which of them a Hugging Face directory uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError
from ..fields import Fields
from ..json_file import read_json
from .awq import awq
from .compressed_tensors import compressed_tensors
from .fp8 import fp8
from .gptq import gptq
from .method import Method
from .mxfp4 import mxfp4

METHODS: Mapping[str, Callable[[Fields], Method]] = {
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "gptq": gptq,
    "mxfp4": mxfp4,
}
"""By transformers' `quant_method`. Each raises ConfigError for settings that are not supported."""

QUANTIZE_CONFIG = "quantize_config.json"
"""AutoGPTQ's own file, from before transformers had `quantization_config`."""
MODELOPT_CONFIG = "hf_quant_config.json"
"""The file of NVIDIA's ModelOpt."""
_MODELOPT_METHODS = {"FP8": "fp8"}
"""Methods by ModelOpt's `quant_algo`."""


def read_method(path: Path, config: Mapping[str, Any]) -> Method | None:
    """Return the method of a directory with this config.json; None if it is not quantized.

    Raises ConfigError if the method or one of its settings is not supported.
    """
    fields = Fields(config, str(path / "config.json")).part("quantization_config")
    if fields is not None:
        return _make(fields, fields.text("quant_method", ""))
    if (path / QUANTIZE_CONFIG).exists():
        fields = Fields(read_json(path / QUANTIZE_CONFIG), str(path / QUANTIZE_CONFIG))
        return _make(fields, fields.text("quant_method", "gptq"))
    if (path / MODELOPT_CONFIG).exists():
        fields = Fields(read_json(path / MODELOPT_CONFIG), str(path / MODELOPT_CONFIG))
        return _make_modelopt(fields.part("quantization") or fields)
    return None


def _make(fields: Fields, name: str) -> Method:
    if name == "modelopt":
        return _make_modelopt(fields)
    if name not in METHODS:
        raise ConfigError(
            f"{fields.source} has quant_method {name!r:.80}, which is not supported; supported: "
            f"{', '.join(METHODS)}, and GGUF files"
        )
    return METHODS[name](fields)


def _make_modelopt(fields: Fields) -> Method:
    algorithm = fields.text("quant_algo", "")
    if algorithm not in _MODELOPT_METHODS:
        raise ConfigError(
            f"{fields.source} has quant_algo {algorithm!r:.80}, which is not supported; supported: "
            f"{', '.join(_MODELOPT_METHODS)}"
        )
    return METHODS[_MODELOPT_METHODS[algorithm]](fields)
