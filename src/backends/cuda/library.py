"""Loads the native CUDA library, once per process, and offers it as torch operators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

from ...core.interfaces import Progress, no_progress
from ..machine.compiling import BuildError
from .build import build_library


class Operators(Protocol):
    """The operators of csrc/binding.cpp, whose schemas name the arguments."""

    def write_kv(self, *arguments: Any) -> None: ...

    def attend_decodes(self, *arguments: Any) -> None: ...

    def attend_prompts(self, *arguments: Any) -> None: ...


_loading = threading.Lock()
_loaded: Operators | None = None
_failed: BuildError | None = None
"""The error of a failed build or load, which is not tried again in this process."""


def load_operators(progress: Progress = no_progress) -> Operators:
    """Return the operators; build the library if necessary. Raises BuildError if that fails."""
    global _loaded, _failed
    with _loading:
        if _failed is not None:
            raise _failed
        if _loaded is None:
            try:
                _loaded = _load(progress)
            except BuildError as error:
                _failed = error
                raise
        return _loaded


def _load(progress: Progress) -> Operators:
    path = build_library(progress)
    load: Callable[[str], None] = torch.ops.load_library
    try:
        load(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from error
    return cast(Operators, torch.ops.tokenmill_cuda)
