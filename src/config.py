"""Settings for programs: `from tokenmill.config import CompilationConfig, CompilationLevel`."""

from __future__ import annotations

from .core.config import EngineConfig
from .core.settings.compilation import (
    CompilationConfig,
    CompilationLevel,
    CompilationMode,
    CUDAGraphMode,
)

__all__ = [
    "CUDAGraphMode",
    "CompilationConfig",
    "CompilationLevel",
    "CompilationMode",
    "EngineConfig",
]
