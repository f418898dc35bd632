"""Lists the models in the hub's cache that can be served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..gguf.parts import all_parts
from ..local_model import HUB, LocalModel
from .complete import is_complete
from .name import MAIN, HubName, cache_folder, files_in

_PREFIX = "models--"


def list_hub_models() -> list[LocalModel]:
    """Describe every model of every revision, sorted by name. A model in a format that is not
    supported is left out."""
    found = [
        model
        for folder in cache_folder().glob(f"{_PREFIX}*")
        for revision, snapshot in _snapshots(folder)
        for model in _models(folder.name.removeprefix(_PREFIX), revision, snapshot)
    ]
    return sorted(found, key=lambda model: model.name)


def _snapshots(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every revision with its folder: by the name of a branch or tag, or else by its commit."""
    named = set()
    for ref in (folder / "refs").rglob("*"):
        with suppress(OSError, ValueError):  # such as a folder
            snapshot = folder / "snapshots" / ref.read_text("utf-8").strip()
            if snapshot.is_dir():
                named.add(snapshot)
                yield ref.relative_to(folder / "refs").as_posix(), snapshot
    for snapshot in (folder / "snapshots").glob("*"):
        if snapshot not in named and snapshot.is_dir():
            yield snapshot.name, snapshot


def _models(repo: str, revision: str, snapshot: Path) -> Iterator[LocalModel]:
    hub = HubName(repo=repo.replace("--", "/"), revision=revision)
    at = "" if revision == MAIN else f"@{revision}"
    whole = f"{hub.repo}{at}"
    ggufs = hub.choose(files_in(snapshot))
    if any(snapshot.glob("*.safetensors*")):
        files = [path for path in snapshot.rglob("*") if path.suffix != ".gguf"]
        yield _model(whole, snapshot, "safetensors", files, is_complete(snapshot, hub))
    elif len(ggufs) == 1:
        yield _gguf(whole, snapshot / ggufs[0])
        return
    for file in ggufs:
        yield _gguf(f"{hub.repo}/{file}{at}", snapshot / file)


def _gguf(name: str, path: Path) -> LocalModel:
    parts = list(all_parts(path))
    return _model(name, path, "gguf", parts, all(part.exists() for part in parts))


def _model(name: str, path: Path, format: str, files: list[Path], is_complete: bool) -> LocalModel:
    return LocalModel(
        name=name,
        kind=HUB,
        format=format,
        num_bytes=sum(file.stat().st_size for file in files if file.is_file()),
        path=str(path),
        is_complete=is_complete,
    )
