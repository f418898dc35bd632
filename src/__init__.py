"""tokenmill: an LLM inference engine whose every policy is a plugin.

from tokenmill import LLM, AsyncEngine, SamplingParams
"""

from __future__ import annotations

if __name__ != "tokenmill":
    raise ImportError(
        "import 'tokenmill', not 'src': run `make install` or `pip install -e .` first"
    )

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
)
from .core.grammar import Grammar, GrammarKind
from .core.outputs import CompletionOutput, FinishReason, RequestOutput
from .core.request_options import RequestOptions
from .core.sampling_params import OutputKind, SamplingParams
from .version import __version__

if TYPE_CHECKING:
    from .api.app import create_app
    from .assembly import AsyncEngine
    from .llm import LLM

__all__ = [
    "HOOK_API",
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineStoppedError",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "InvalidRequestError",
    "OutputKind",
    "OverloadedError",
    "PluginError",
    "RateLimitedError",
    "RequestFailedError",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "TokenmillError",
    "__version__",
    "create_app",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    """These are imported when asked for: a plugin or `--help` needs no torch and no HTTP."""
    if name == "LLM":
        from .llm import LLM

        return LLM
    if name == "AsyncEngine":
        from .assembly import AsyncEngine

        return AsyncEngine
    if name == "create_app":
        from .api.app import create_app

        return create_app
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
