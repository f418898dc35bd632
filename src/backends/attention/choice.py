"""Turns the configured attention backend into a class: one backend, `auto`, or a pair."""

from __future__ import annotations

from typing import Any

from ...core.interfaces import Progress, no_progress
from ..choosing.auto import Plugins, choose
from .mixed import reasons_against_layers
from .pair import BackendPair, build_pair
from .self_check import reasons_of_self_check


def choose_attention_backend(plugins: Plugins, progress: Progress = no_progress) -> Any:
    """Return a backend's class, or an object that is used like one (see AttentionBackend).

    This builds the providers, which imports torch and their packages. Raises PluginError for an
    option that no chosen backend takes.
    """
    registry, choice = plugins.registry, plugins.choice("attention_backend")
    if choice.is_pair:
        return BackendPair(*build_pair(registry, choice), progress)
    return choose(plugins, "attention_backend", _reasons_against, progress)


def _reasons_against(backend: Any, spec: Any, progress: Progress) -> list[str]:
    """Like `reasons_against`; `spec` may also be a tuple: the specs of a model's layers.

    On a GPU, a backend must also compute the same as torch.
    """
    specs = spec if isinstance(spec, tuple) else (spec,)
    reasons = reasons_against_layers(backend, specs, progress)
    if reasons or specs[0].device.type != "cuda":
        return reasons
    return [reason for one in specs for reason in reasons_of_self_check(backend, one)]
