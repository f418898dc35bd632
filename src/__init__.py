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

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .api.app import create_app as create_app
    from .api.serving.context import ServerSettings as ServerSettings
    from .assembly import AsyncEngine as AsyncEngine
    from .core.config import EngineConfig as EngineConfig
    from .core.contract.hookspecs import HOOK_API as HOOK_API
    from .core.contract.hookspecs import hookimpl as hookimpl
    from .core.errors import ConfigError as ConfigError
    from .core.errors import EngineStoppedError as EngineStoppedError
    from .core.errors import InvalidRequestError as InvalidRequestError
    from .core.errors import OverloadedError as OverloadedError
    from .core.errors import PluginError as PluginError
    from .core.errors import RateLimitedError as RateLimitedError
    from .core.errors import RequestFailedError as RequestFailedError
    from .core.errors import TokenmillError as TokenmillError
    from .core.errors import WrongContextError as WrongContextError
    from .core.outputs import CompletionOutput as CompletionOutput
    from .core.outputs import FinishReason as FinishReason
    from .core.outputs import RequestMetrics as RequestMetrics
    from .core.outputs import RequestOutput as RequestOutput
    from .core.plan import TokenLogprobs as TokenLogprobs
    from .core.requests.grammar import Grammar as Grammar
    from .core.requests.grammar import GrammarKind as GrammarKind
    from .core.requests.pooling import Pooling as Pooling
    from .core.requests.pooling import PoolingParams as PoolingParams
    from .core.requests.request_options import RequestOptions as RequestOptions
    from .core.requests.sampling_params import OutputKind as OutputKind
    from .core.requests.sampling_params import SamplingParams as SamplingParams
    from .llm import LLM as LLM
    from .pooling_outputs import EmbeddingOutput as EmbeddingOutput
    from .pooling_outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
    from .pooling_outputs import PoolingOutput as PoolingOutput
    from .pooling_outputs import PoolingRequestOutput as PoolingRequestOutput
    from .pooling_outputs import ScoringOutput as ScoringOutput
    from .pooling_outputs import ScoringRequestOutput as ScoringRequestOutput

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

__all__ = sorted((*_HOMES, "__version__"))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
