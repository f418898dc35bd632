"""Finds a model by what the user names: a path, or a repository of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from ....core.errors import ConfigError
from ....core.interfaces import Progress
from .name import HubName, cache_folder, files_in, find_snapshot, parse_hub_name


def locate_model(text: str, *, allow_download: bool, progress: Progress) -> Path:
    """Return the path of a model, which may be one in the hub's cache.

    A path that exists always wins. With `allow_download`, files that the cache lacks are downloaded
    first. A text that is neither a path nor a name on the hub is returned as a path. Raises
    ConfigError if the cache has no such model, or the download fails.
    """
    path = Path(text).expanduser()
    name = None if path.exists() else parse_hub_name(text)
    if name is None:
        return path
    if allow_download:
        from .download import download

        download(name, progress)
    snapshot = find_snapshot(name)
    if snapshot is None:
        raise _not_found(text, name)
    return _in_snapshot(snapshot, name)


def _in_snapshot(snapshot: Path, name: HubName) -> Path:
    is_whole = name.file is None and name.quant is None
    if is_whole and (any(snapshot.glob("*.safetensors*")) or not files_in(snapshot)):
        return snapshot
    return snapshot / name.choose_one(files_in(snapshot), f"{name.repo} in {snapshot}")


def _not_found(text: str, name: HubName) -> ConfigError:
    revision = "" if name.revision == "main" else f" --revision {name.revision}"
    file = "" if name.file is None else f" {name.file}"
    return ConfigError(
        f"no model {text}: there is neither a file or directory of this name, nor revision "
        f"{name.revision} of {name.repo} in {cache_folder()}; add --allow-download, or run "
        f"`hf download {name.repo}{file}{revision}` first"
    )
