"""Which backends are checked here, and on which device.

`make gpu-check` says so by two variables of the environment; without them it is every backend and
pair of ours, on the GPU. On the device "cpu" the checks themselves are rehearsed.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.backends.attention.reasons import reasons_against
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost

DEVICE = torch.device(os.environ.get("TOKENMILL_CHECK_DEVICE", "cuda"))
ON_GPU = (
    "torch flash-attn xformers cuda-paged triton"
    " flash-attn,cuda-paged flash-attn,triton xformers,torch"
)
NAMES = os.environ.get(
    "TOKENMILL_CHECK_BACKENDS", ON_GPU if DEVICE.type == "cuda" else "torch cpu"
).split()
"""Divided by blanks: a pair's two names have a comma between them."""


def skip_without_device() -> None:
    """Skip the module that calls it where there is no GPU."""
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        pytest.skip(
            f"no CUDA device: torch {torch.__version__} finds none", allow_module_level=True
        )


def load(name: str) -> Any:
    """The class of a backend, or what looks like the class of a pair, by the plugins' door."""
    config = EngineConfig(attention_backend=name, device=DEVICE.type)
    return choose_attention_backend(PluginHost.load(config))


def load_for(name: str, spec: AttentionSpec) -> Any:
    """As `load`; skips the test, with every reason, where the backend cannot serve the spec."""
    backend = load(name)
    reasons = reasons_against(backend, spec)
    if reasons:
        pytest.skip(f"{name}: {'; '.join(reasons)}")
    return backend
