"""Remembers where `tokenmill draft make` has written draft models, so that they can be listed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from ...core.errors import TokenmillError
from ...core.log import get_logger
from ..machine.compiling import cache_folder

log = get_logger("model")
_NAME = "drafts.json"


def recorded_drafts() -> list[Path]:
    """The folders that still have a draft model, sorted."""
    try:
        found = json.loads((cache_folder() / _NAME).read_bytes())
        paths = {Path(one) for one in found if isinstance(one, str)}
    except (OSError, ValueError, TypeError):  # there is none, or it is damaged
        return []
    return sorted(path for path in paths if (path / "model.safetensors").is_file())


def record_draft(folder: Path) -> None:
    """Add a folder. Making a draft never fails here: what goes wrong is logged."""
    try:
        kept = {*recorded_drafts(), folder.resolve()}
        cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(cache_folder() / _NAME, sorted(map(str, kept)))
    except (OSError, TokenmillError) as error:
        log.warning("draft_not_recorded", path=str(folder), reason=str(error))


def _write(file: Path, paths: Sequence[str]) -> None:
    with NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as written:
        json.dump(paths, written, indent=2)
    os.replace(written.name, file)
