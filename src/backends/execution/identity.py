"""The properties that must be equal in the engine and all its workers: they compute one model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ...core.config import EngineConfig
from ...core.contract.plugin_info import PluginInfo
from ...core.settings.declaration import flag

if TYPE_CHECKING:
    from ..weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process's version, model, plugins and settings."""

    version: str
    """The version of tokenmill."""
    model: str
    """A hash, see `hash_model`."""
    plugins: tuple[str, ...]
    """The enabled plugins with their distributions and versions, sorted."""
    choices: Mapping[str, str]
    """The chosen provider, by slot."""
    config: EngineConfig


def identify(
    version: str,
    checkpoint: Checkpoint,
    plugins: tuple[PluginInfo, ...],
    choices: Mapping[str, str],
    config: EngineConfig,
) -> Identity:
    """The identity of this process. Plugins that the program passed in as objects do not count."""
    return Identity(
        version=version,
        model=hash_model(checkpoint),
        plugins=tuple(
            sorted(
                f"{plugin.name} ({plugin.distribution} {plugin.version})"
                for plugin in plugins
                if plugin.state == "enabled" and plugin.distribution != "-"
            )
        ),
        choices=dict(choices),
        config=config,
    )


def hash_model(checkpoint: Checkpoint) -> str:
    """Hash a model's configuration, and the name, size and header of each file.

    The weights themselves are left out: reading them would take as long as loading.
    """
    found = hashlib.sha256(repr(checkpoint.config).encode())
    for path, header_bytes in sorted(checkpoint.files.items()):
        found.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as file:
            found.update(file.read(header_bytes))
    return found.hexdigest()[:16]


def differences(engine: Identity, worker: Identity) -> Iterator[str]:
    """Describe each difference: what the worker has, and what the engine has instead."""
    if worker.version != engine.version:
        yield f"version {worker.version} instead of {engine.version}"
    if worker.model != engine.model:
        yield f"another model (hash {worker.model} instead of {engine.model})"
    if missing := sorted(set(engine.plugins) - set(worker.plugins)):
        yield f"missing plugins: {', '.join(missing)}"
    if more := sorted(set(worker.plugins) - set(engine.plugins)):
        yield f"additional plugins: {', '.join(more)}"
    for slot, name in engine.choices.items():
        if (other := worker.choices.get(slot)) != name:
            yield f"{flag(slot)} {other} instead of {name}"
    for field in fields(EngineConfig):
        mine, theirs = getattr(engine.config, field.name), getattr(worker.config, field.name)
        if theirs != mine:
            yield f"{flag(field.name)} {theirs!r} instead of {mine!r}"
