"""The native CUDA library as torch operators, loaded once per process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

from ...core.interfaces import Progress
from ..machine.compiling import BuildError
from .build import build_library


class Operators(Protocol):
    """The operators of csrc/binding.cpp; their schemas name the arguments."""

    def write_kv(self, *arguments: Any) -> None: ...

    def attend_decodes(self, *arguments: Any) -> None: ...

    def attend_prompts(self, *arguments: Any) -> None: ...


_loading = threading.Lock()
_loaded: Operators | None = None
_failed: BuildError | None = None
"""Why there is none: a compiler that failed once is not asked again."""


def load_operators(progress: Progress | None = None) -> Operators:
    """The operators, built if need be. Raises BuildError where there are none to be had."""
    global _loaded, _failed
    with _loading:
        if _failed is not None:
            raise _failed
        if _loaded is None:
            try:
                _loaded = _load(progress or _ignore)
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


def _ignore(stage: str, part: float) -> None:
    """Progress that nobody watches."""
