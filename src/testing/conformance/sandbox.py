"""Moves options that name files into a temporary folder, so that a check does not write to them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path, PurePath


def sandboxed(options: type, given: Mapping[str, object], folder: Path) -> dict[str, object]:
    """The given options with every path moved into `folder`, default values included.

    An existing file is copied, so that it can be read. `options` is the provider's dataclass.
    """
    values = {f.name: f.default for f in fields(options) if f.default is not MISSING}
    values |= {key.replace("-", "_"): value for key, value in given.items()}
    moved = {key: _move(value, folder) for key, value in values.items() if _is_path(value)}
    names = {key.replace("-", "_"): key for key in given}
    return {**given, **{names.get(key, key): value for key, value in moved.items()}}


def _is_path(value: object) -> bool:
    """Whether a value is a path with a folder in it.

    A file name without a folder needs no move: every check runs in an empty folder.
    """
    if isinstance(value, PurePath):
        return True
    return isinstance(value, str) and "://" not in value and (value[:1] == "~" or "/" in value)


def _move(value: object, folder: Path) -> str:
    path = Path(str(value)).expanduser()
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        shutil.copyfile(path, target)
    elif path.is_dir():
        target.mkdir(exist_ok=True)
    return str(target)
