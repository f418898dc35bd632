"""Finds a model by what the user names: a path, or a repository of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.interfaces import Progress
from ....core.log import get_logger
from ..default_model import find_default_model
from .complete import is_complete
from .name import MAIN, HubName, cache_folder, files_in, find_snapshot, parse_hub_name

log = get_logger("model")


def locate_configured_model(config: EngineConfig, progress: Progress) -> Path:
    """Return the path of the configured model, or of the default model if none is named."""
    if config.model:
        return locate_model(
            config.model,
            allow_download=config.allow_download,
            progress=progress,
            revision=config.revision,
        )
    if config.revision is not None:
        raise ConfigError("--revision needs --model ORG/NAME: the default model has none")
    return find_default_model()


def locate_model(
    text: str, *, allow_download: bool, progress: Progress, revision: str | None = None
) -> Path:
    """Return the path of a model, which may be one in the hub's cache.

    A path that exists always wins. With `allow_download`, a model is downloaded first if the cache
    lacks one of its files; otherwise the hub is not asked. A text that is neither a path nor a
    name on the hub is returned as a path. `revision`: the one to use, if the text names none.
    Raises ConfigError if the cache has no such model, the download fails, or `revision` has no
    effect.
    """
    path = Path(text).expanduser()
    name = None if path.exists() else parse_hub_name(text)
    if name is None:
        if revision is not None:
            raise ConfigError(
                f"--revision {revision} has no effect on {text}, which is not a name on the "
                "Hugging Face Hub: remove it"
            )
        return path
    name = name.at(revision)
    snapshot = find_snapshot(name)
    is_new = allow_download and (snapshot is None or not is_complete(snapshot, name))
    if is_new:
        from .download import download

        download(name, progress)
        snapshot = find_snapshot(name)
    if snapshot is None:
        raise _not_found(text, name)
    found = _in_snapshot(snapshot, name)
    log.info(
        "hub_model",
        repository=name.repo,
        revision=name.revision,
        commit=snapshot.name,
        source="download" if is_new else "cache",
    )
    return found


def _in_snapshot(snapshot: Path, name: HubName) -> Path:
    if name.is_whole and (any(snapshot.glob("*.safetensors*")) or not files_in(snapshot)):
        return snapshot
    return snapshot / name.choose_one(files_in(snapshot), f"{name.repo} in {snapshot}")


def _not_found(text: str, name: HubName) -> ConfigError:
    revision = "" if name.revision == MAIN else f" --revision {name.revision}"
    file = "" if name.file is None else f" {name.file}"
    return ConfigError(
        f"no model {text}: there is neither a file or directory of this name, nor revision "
        f"{name.revision} of {name.repo} in {cache_folder()}; add --allow-download, or run "
        f"`hf download {name.repo}{file}{revision}` first"
    )
