"""Names of models on the Hugging Face Hub, and the hub's cache on this machine.

ORG/NAME is a repository, ORG/NAME:Q4_K_M its GGUF model with that quantization, and
ORG/NAME/FILE.gguf a file of it. @REVISION at the end is a branch, a tag or a commit; default: main.
Layout of the cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ....core.errors import ConfigError
from ..files.model_path import PROJECTOR
from ..gguf.parts import models_among, part_stem

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_REVISION = rf"{_WORD}(/{_WORD})*"
_NAME = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?P<file>(/{_WORD})+\.gguf|)(:(?P<quant>{_WORD})|)"
    rf"(@(?P<revision>{_REVISION})|)"
)


MAIN = "main"
"""The revision of a name without @REVISION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """The name of a model on the hub, in its parts."""

    repo: str
    """ORG/NAME."""
    revision: str = MAIN
    file: str | None = None
    """Path of a GGUF file in the repository."""
    quant: str | None = None
    """Quantization of the GGUF model, for example "Q4_K_M"."""

    @property
    def is_whole(self) -> bool:
        """Whether it names a repository, not one of its GGUF models."""
        return self.file is None and self.quant is None

    def at(self, revision: str | None) -> HubName:
        """Return the name with the revision of --revision; None: this name.

        Raises ConfigError if the name states another one.
        """
        if revision is None or revision == self.revision:
            return self
        if self.revision != MAIN:
            raise ConfigError(
                f"--revision {revision} differs from the revision in --model "
                f"{self.repo}@{self.revision}; remove one of them"
            )
        if not re.fullmatch(_REVISION, revision):
            raise ConfigError(
                f"--revision {revision!r:.80} is not the name of a branch, a tag or a commit"
            )
        return replace(self, revision=revision)

    def choose(self, files: Iterable[str]) -> list[str]:
        """Return the GGUF models that the name can mean, by the path of a file of each.

        `files` are paths in the repository. Without a quantization, all models are returned.
        """
        paths = [PurePosixPath(file) for file in files if not _is_projector(file)]
        if self.file is not None:
            return [self.file] if PurePosixPath(self.file) in paths else []
        models = [str(path) for path in models_among(paths)]
        if self.quant is None:
            return models
        return [model for model in models if _has_quantization(model, self.quant)]

    def choose_one(self, files: Iterable[str], where: str) -> str:
        """Return the GGUF model that the name means. Raises ConfigError if it is not exactly one.

        `where`: the place of the files, for the error.
        """
        files = tuple(files)
        found = self.choose(files)
        if len(found) == 1:
            return found[0]
        known = found or replace(self, file=None, quant=None).choose(files)
        if not known:
            raise ConfigError(
                f"{where} has no model that tokenmill opens: neither model.safetensors, nor "
                "model.safetensors.index.json, nor a .gguf file"
            )
        raise ConfigError(
            f"{where} has {'' if found else 'no such model, but '}the GGUF models "
            f"{', '.join(known)[:400]}: name one as {self.repo}/FILE.gguf or "
            f"{self.repo}:QUANTIZATION"
        )


def parse_hub_name(text: str) -> HubName | None:
    """Return the parts of a name; None if it is not one, such as a path."""
    match = _NAME.fullmatch(text)
    if match is None or (match["file"] and match["quant"]) or match["repo"].endswith(".gguf"):
        return None
    return HubName(
        repo=match["repo"],
        revision=match["revision"] or MAIN,
        file=match["file"].lstrip("/") or None,
        quant=match["quant"],
    )


def cache_folder() -> Path:
    """Return the folder of the hub's cache, as huggingface_hub finds it. It may not exist."""
    for variable, inside in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        value = os.environ.get(variable)
        if value:
            return Path(os.path.expandvars(value)).expanduser() / inside
    return Path("~/.cache/huggingface/hub").expanduser()


def model_folder(name: HubName) -> Path:
    """Return the folder of a repository in the cache. It may not exist."""
    return cache_folder() / f"models--{name.repo.replace('/', '--')}"


def find_snapshot(name: HubName) -> Path | None:
    """Return the folder of a revision's files in the cache; None if it is not there."""
    folder = model_folder(name)
    commit = name.revision
    with suppress(OSError, ValueError):  # else the revision is a commit
        commit = (folder / "refs" / name.revision).read_text("utf-8").strip()
    snapshot = folder / "snapshots" / commit
    return snapshot if re.fullmatch(_WORD, commit) and snapshot.is_dir() else None


def files_in(snapshot: Path) -> list[str]:
    """Return the paths of a snapshot's GGUF files, relative to it."""
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]


def _is_projector(file: str) -> bool:
    return PurePosixPath(file).name.startswith(PROJECTOR)


def _has_quantization(model: str, quant: str) -> bool:
    """Whether a file's name ends in the quantization, after a separator."""
    stem, quant = part_stem(PurePosixPath(model)).lower(), quant.lower()
    return stem == quant or stem.endswith((f"-{quant}", f".{quant}", f"_{quant}"))
