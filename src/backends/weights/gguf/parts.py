"""A GGUF model in one file, or in the parts that llama.cpp's gguf-split writes.

Part 2 of 3 has the name NAME-00002-of-00003.gguf. Each part has a header with a table of its own
tensors, and with `split.no` (from 0), `split.count` and `split.tensors.count` (of the whole model).
Only the first part has the model's metadata. Source: tools/gguf-split in llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar

from ....core.errors import ConfigError
from .file import GGUFFile, read_gguf_file

P = TypeVar("P", bound=PurePath)

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def first_part(path: P) -> P:
    """Return the first part of the split model that a part belongs to; else the path itself."""
    return _part(path, 0)


def first_part_name(path: str) -> str:
    """Return the path in a repository of the first part of the model that a file belongs to."""
    return str(first_part(PurePosixPath(path)))


def all_parts(path: P) -> Iterator[P]:
    """Yield the paths of all parts of the model that a part belongs to; else the path itself."""
    match = _PART.fullmatch(path.name)
    for index in range(1 if match is None else int(match[3])):
        yield _part(path, index)


def part_stem(path: PurePath) -> str:
    """Return the file's name without the suffix and without the number of a part."""
    match = _PART.fullmatch(path.name)
    return path.stem if match is None else match[1]


def models_among(paths: Iterable[P]) -> list[P]:
    """Return one path for each GGUF model: its file, or its first part that is there, sorted."""
    found: dict[str, P] = {}
    for path in sorted(path for path in paths if path.suffix == ".gguf"):
        found.setdefault(str(first_part(path)), path)
    return list(found.values())


def read_gguf_model(path: Path) -> GGUFFile:
    """Read the headers of a model's file or parts, of which `path` may be any.

    The result has the first part's path and metadata, and the tensors of all parts. Raises
    ConfigError that names the part which is missing, damaged, or of another model.
    """
    named = read_gguf_file(path)
    count = _split_field(named, "split.count", 1)
    if count <= 1:
        return named
    if not _has_name_of_part(path, count):
        raise ConfigError(
            f"{path} is one of {count} parts of a model, so its name must end with "
            f"-00001-of-{count:05}.gguf for part 1: give the parts their names back"
        )
    parts = [_read_part(_part(path, index), index, count) for index in range(count)]
    return _join(parts)


def _read_part(path: Path, index: int, count: int) -> GGUFFile:
    if not path.exists():
        raise ConfigError(f"{path} is missing: it is part {index + 1} of {count} of the model")
    part = read_gguf_file(path)
    for key, wanted in (("split.count", count), ("split.no", index)):
        found = _split_field(part, key, 1 if key == "split.count" else -1)
        if found != wanted:
            raise ConfigError(
                f"{path} is not part {index + 1} of {count}: its {key} is {found}, not {wanted}"
            )
    return part


def _join(parts: list[GGUFFile]) -> GGUFFile:
    first = parts[0]
    total = _split_field(first, "split.tensors.count", -1)
    tensors = dict(first.tensors)
    for part in parts[1:]:
        _check_same_model(first, part, total)
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ConfigError(
                    f"{part.path} is a part of another model: {tensors[name].path} has the tensor "
                    f"{name}, too"
                )
            tensors[name] = tensor
    if len(tensors) != total:
        raise ConfigError(
            f"the {len(parts)} parts of {first.path} have {len(tensors)} tensors, not {total} as "
            "split.tensors.count says"
        )
    return replace(first, tensors=tensors)


def _check_same_model(first: GGUFFile, part: GGUFFile, total: int) -> None:
    found = _split_field(part, "split.tensors.count", -1)
    if found != total:
        raise ConfigError(
            f"{part.path} is a part of another model: its split.tensors.count is {found}, and "
            f"{total} in {first.path}"
        )
    for key in ("general.architecture", "general.name"):
        theirs = part.metadata.get(key)
        if theirs is not None and theirs != first.metadata.get(key):
            raise ConfigError(
                f"{part.path} is a part of another model: its {key} is {theirs!r:.80}, and "
                f"{first.metadata.get(key)!r:.80} in {first.path}"
            )


def _split_field(file: GGUFFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} in {file.path} must be an integer, got {value!r:.80}")
    return value


def _has_name_of_part(path: Path, count: int) -> bool:
    match = _PART.fullmatch(path.name)
    return match is not None and int(match[3]) == count


def _part(path: P, index: int) -> P:
    """Return the path of another part; a path without a part's name is returned as it is."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return path
    return path.with_name(f"{match[1]}-{index + 1:05}-of-{match[3]}.gguf")
