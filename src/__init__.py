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

from .version import __version__

if TYPE_CHECKING:
    from .api.app import create_app
    from .api.serving.context import ServerSettings
    from .assembly import AsyncEngine
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
    from .core.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
    from .core.plan import TokenLogprobs
    from .core.requests.grammar import Grammar, GrammarKind
    from .core.requests.pooling import Pooling, PoolingParams
    from .core.requests.request_options import RequestOptions
    from .core.requests.sampling_params import OutputKind, SamplingParams
    from .llm import LLM
    from .pooling_outputs import (
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )

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

_NAMES = {
    "api.app": "create_app",
    "api.serving.context": "ServerSettings",
    "assembly": "AsyncEngine",
    "core.config": "EngineConfig",
    "core.contract.hookspecs": "HOOK_API hookimpl",
    "core.errors": (
        "ConfigError EngineStoppedError InvalidRequestError OverloadedError PluginError "
        "RateLimitedError RequestFailedError TokenmillError WrongContextError"
    ),
    "core.requests.grammar": "Grammar GrammarKind",
    "core.outputs": "CompletionOutput FinishReason RequestMetrics RequestOutput",
    "core.plan": "TokenLogprobs",
    "core.requests.pooling": "Pooling PoolingParams",
    "pooling_outputs": (
        "EmbeddingOutput EmbeddingRequestOutput PoolingOutput PoolingRequestOutput "
        "ScoringOutput ScoringRequestOutput"
    ),
    "core.requests.request_options": "RequestOptions",
    "core.requests.sampling_params": "OutputKind SamplingParams",
    "llm": "LLM",
}
"""Names by their modules, which are imported when a name is asked for: `import tokenmill` is fast,
and a plugin or `--help` needs no torch and no HTTP."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
