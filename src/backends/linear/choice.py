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

    Its `build(spec, progress)`, if it has one, is called first so that its progress is visible.
    """
    if hasattr(backend, "build"):
        with suppress(BuildError):  # `reasons_against` reports it
            backend.build(spec, progress)
    reasons: list[str] = backend.reasons_against(spec)
    return reasons


def looks_up(backend: Any, spec: LinearSpec) -> bool:
    """Whether a backend looks up rows of the weights that it keeps."""
    if isinstance(backend, AutoLinear):
        return backend.looks_up(spec)
    return hasattr(backend, "embedding")


def packed_bytes(
    backend: Any,
    spec: LinearSpec,
    format: WeightFormat | torch.dtype,
    num_rows: int,
    num_inputs: int,
) -> int | None:
    """Return the memory in which a backend keeps a matrix; None: as much as in the file."""
    if not hasattr(backend, "packed_bytes"):
        return None
    size: int | None = backend.packed_bytes(spec, format, num_rows, num_inputs)
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

    def looks_up(self, spec: LinearSpec) -> bool:
        chosen, _ = self._candidates.choose(spec)
        return looks_up(chosen, spec)

    def packed_bytes(
        self,
        spec: LinearSpec,
        format: WeightFormat | torch.dtype,
        num_rows: int,
        num_inputs: int,
    ) -> int | None:
        chosen, _ = self._candidates.choose(spec)
        return packed_bytes(chosen, spec, format, num_rows, num_inputs)

    def keeps(self, spec: LinearSpec, format: WeightFormat) -> bool:
        chosen, _ = self._candidates.choose(spec)
        return chosen is not None and bool(chosen.keeps(spec, format))

    def __call__(self, spec: LinearSpec) -> Any:
        return self._candidates(spec)
