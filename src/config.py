"""Settings for programs: `from tokenmill.config import CompilationConfig, CompilationLevel`."""

from .core.config import EngineConfig as EngineConfig
from .core.settings.compilation import CompilationConfig as CompilationConfig
from .core.settings.compilation import CompilationLevel as CompilationLevel
from .core.settings.compilation import CompilationMode as CompilationMode
from .core.settings.compilation import CUDAGraphMode as CUDAGraphMode

__all__ = sorted(name for name in globals() if name[0].isalpha())
