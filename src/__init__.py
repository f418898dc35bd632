"""tokenmill: an LLM inference engine whose every policy is a plugin.

from tokenmill import LLM, AsyncEngine, SamplingParams
"""

from __future__ import annotations

if __name__ != "tokenmill":
    raise ImportError(
        "import 'tokenmill', not 'src': run `make install` or `pip install -e .` first"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.config import EngineConfig
from .core.contract.hookspecs import HOOK_API, hookimpl
from .core.errors import (
    ConfigError,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    PluginError,
    RateLimitedError,
    RequestFailedError,
    TokenmillError,
    WrongContextError,
)
from .core.grammar import Grammar, GrammarKind
from .core.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from .core.plan import TokenLogprobs
from .core.pooling import Pooling, PoolingParams
from .core.pooling_outputs import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .core.request_options import RequestOptions
from .core.sampling_params import OutputKind, SamplingParams
from .version import __version__

if TYPE_CHECKING:
    from .api.app import create_app
    from .api.openai.context import ServerSettings
    from .assembly import AsyncEngine
    from .llm import LLM

__all__ = [
    "HOOK_API",
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineConfig",
    "EngineStoppedError",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "InvalidRequestError",
    "OutputKind",
    "OverloadedError",
    "PluginError",
    "Pooling",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RateLimitedError",
    "RequestFailedError",
    "RequestMetrics",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "ServerSettings",
    "TokenLogprobs",
    "TokenmillError",
    "WrongContextError",
    "__version__",
    "create_app",
    "hookimpl",
]


_LAZY = {
    "LLM": "llm",
    "AsyncEngine": "assembly",
    "ServerSettings": "api.openai.context",
    "create_app": "api.app",
}
"""Imported when asked for, from these modules: a plugin or `--help` needs no torch and no HTTP."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
