"""The supported quantization methods, and which of them a Hugging Face directory uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ....core.contract.plugin_info import normalize
from ....core.errors import ConfigError
from ..config.fields import Fields
from ..files.json_file import read_json
from .awq import awq
from .compressed_tensors import compressed_tensors
from .fp8 import fp8
from .gptq import gptq
from .method import Method
from .mxfp4 import mxfp4

ReadMethod = Callable[[Fields], Method]
"""Turns the settings of a checkpoint into a Method.

Raises ConfigError for settings that are not supported.
"""

METHODS: Mapping[str, ReadMethod] = {
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "gptq": gptq,
    "mxfp4": mxfp4,
}
"""tokenmill's own methods, by transformers' `quant_method`."""

QUANTIZE_CONFIG = "quantize_config.json"
"""AutoGPTQ's own file, from before transformers had `quantization_config`."""
MODELOPT_CONFIG = "hf_quant_config.json"
"""The file of NVIDIA's ModelOpt."""
_MODELOPT_METHODS = {"FP8": "fp8"}
"""Methods by ModelOpt's `quant_algo`."""


def read_method(
    path: Path, config: Mapping[str, Any], methods: Mapping[str, ReadMethod] = METHODS
) -> Method | None:
    """Return the method of a directory with this config.json; None if it is not quantized.

    `methods` are the known ones, by `quant_method`. Raises ConfigError if it is none of them, or if
    one of its settings is not supported.
    """
    fields = Fields(config, str(path / "config.json")).part("quantization_config")
    if fields is not None:
        return _make(fields, fields.text("quant_method", ""), methods)
    if (path / QUANTIZE_CONFIG).exists():
        fields = Fields(read_json(path / QUANTIZE_CONFIG), str(path / QUANTIZE_CONFIG))
        return _make(fields, fields.text("quant_method", "gptq"), methods)
    if (path / MODELOPT_CONFIG).exists():
        fields = Fields(read_json(path / MODELOPT_CONFIG), str(path / MODELOPT_CONFIG))
        return _make_modelopt(fields.part("quantization") or fields, methods)
    return None


def _make(fields: Fields, name: str, methods: Mapping[str, ReadMethod]) -> Method:
    if name == "modelopt" and name not in methods:
        return _make_modelopt(fields, methods)
    reader = methods.get(name) or methods.get(normalize(name))
    if reader is None:
        raise ConfigError(
            f"{fields.source} has quant_method {name!r:.80}, which is not supported; supported: "
            f"{', '.join(methods)}, and GGUF files"
        )
    return reader(fields)


def _make_modelopt(fields: Fields, methods: Mapping[str, ReadMethod]) -> Method:
    algorithm = fields.text("quant_algo", "")
    if algorithm not in _MODELOPT_METHODS:
        raise ConfigError(
            f"{fields.source} has quant_algo {algorithm!r:.80}, which is not supported; supported: "
            f"{', '.join(_MODELOPT_METHODS)}"
        )
    return _make(fields, _MODELOPT_METHODS[algorithm], methods)
