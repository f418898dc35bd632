"""Turns the configured linear backend into a class: one backend, or `auto`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from ...core.interfaces import Progress, no_progress
from ..choosing.auto import AutoBackend, Plugins, choose
from ..machine.compiling import BuildError
from ..weights.packed import WeightFormat
from .base import LinearSpec


def choose_linear_backend(plugins: Plugins, progress: Progress = no_progress) -> Any:
    """Return a backend's class, or an object that is used like one (see LinearBackend).

    Raises PluginError for an option that no chosen backend takes.
    """
    chosen = choose(plugins, "linear_backend", reasons_against, progress)
    return AutoLinear(chosen) if isinstance(chosen, AutoBackend) else chosen


def reasons_against(backend: Any, spec: LinearSpec, progress: Progress = no_progress) -> list[str]:
    """Return every reason why a backend cannot serve a spec.

    It is built first, if it can be, so that its progress is visible.
    """
    if not isinstance(backend, AutoLinear) and backend.capabilities.builds:
        with suppress(BuildError):  # `reasons_against` reports it
            backend.build(spec, progress)
    reasons: list[str] = backend.reasons_against(spec)
    return reasons


def looks_up(backend: Any, spec: LinearSpec) -> bool:
    """Whether a backend looks up rows of the weights that it keeps."""
    chosen = backend.choose(spec) if isinstance(backend, AutoLinear) else backend
    return chosen is not None and bool(chosen.capabilities.looks_up)


def packed_bytes(
    backend: Any,
    spec: LinearSpec,
    format: WeightFormat | torch.dtype,
    num_rows: int,
    num_inputs: int,
) -> int | None:
    """Return the memory in which a backend keeps a matrix; None: its size in the file."""
    chosen = backend.choose(spec) if isinstance(backend, AutoLinear) else backend
    if chosen is None or not chosen.capabilities.measures:
        return None
    size: int = chosen.packed_bytes(spec, format, num_rows, num_inputs)
    return size


class AutoLinear:
    """`auto` for linear backends: the first that serves a spec also says what it keeps."""

    name = "auto"

    def __init__(self, candidates: AutoBackend) -> None:
        self._candidates = candidates

    def reasons_against(self, spec: LinearSpec) -> list[str]:
        return self._candidates.reasons_against(spec)

    def judge_all(self, spec: LinearSpec) -> dict[str, list[str]]:
        return self._candidates.judge_all(spec)

    def choose(self, spec: LinearSpec) -> Any:
        """Return the class that serves a spec, or None."""
        return self._candidates.choose(spec)[0]

    def keeps(self, spec: LinearSpec, format: WeightFormat) -> bool:
        chosen = self.choose(spec)
        return chosen is not None and bool(chosen.keeps(spec, format))

    def __call__(self, spec: LinearSpec) -> Any:
        return self._candidates(spec)
