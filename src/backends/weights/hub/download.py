"""Downloads the files of a model that tokenmill opens into the Hugging Face cache."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError
from ....core.interfaces import Progress
from ..config.fields import one_line
from ..files.weight_files import INDEX, SINGLE, shards_in
from ..gguf.parts import first_part_name
from ..quantization.methods import MODELOPT_CONFIG, QUANTIZE_CONFIG
from .name import HubName, cache_folder, model_folder

STAGE = "downloading the model"
_SENTENCEPIECE, _TOKENIZER = "tokenizer.model", "tokenizer.json"
"""The first is read only where the second is missing."""
_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    _TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    QUANTIZE_CONFIG,
    MODELOPT_CONFIG,
)
"""Files that a Hugging Face directory needs or may have besides its weights."""


def download(name: HubName, progress: Progress) -> None:
    """Download what is not in the cache yet; report progress in bytes.

    Only files that tokenmill opens are downloaded, all of one commit. After the last one, the cache
    records that this is the commit of the revision. Raises ConfigError if the hub cannot be
    reached, has no such model, or has several that the name can mean.
    """
    # The library and the packages under it raise exceptions of many kinds, and name them in the
    # message.
    try:
        commit, sizes = _list_files(name)
        pinned = replace(name, revision=commit)
        wanted = _choose_files(pinned, sizes)
        _Download(pinned, {file: sizes[file] for file in wanted}, progress).run()
        _write_reference(name, commit)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{name.repo} at revision {name.revision} cannot be downloaded: {one_line(error)}"
        ) from error


def _list_files(name: HubName) -> tuple[str, dict[str, int]]:
    """Return the commit of the revision, and the size of each of its files by path."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    info = api.model_info(name.repo, revision=name.revision, files_metadata=True)
    return str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _write_reference(name: HubName, commit: str) -> None:
    """Write which commit a branch or tag is, as huggingface_hub does."""
    if name.revision == commit:
        return
    reference = model_folder(name) / "refs" / name.revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    temporary = reference.with_name(f"{reference.name}.{os.getpid()}.tmp")
    temporary.write_text(commit, "utf-8")
    temporary.replace(reference)


def _choose_files(name: HubName, files: Mapping[str, int]) -> list[str]:
    if name.is_whole:
        if INDEX in files:
            shards = shards_in(Path(_fetch(name, INDEX)))
            return [*_small(files), INDEX, *shards]
        if SINGLE in files:
            return [*_small(files), SINGLE]
    model = name.choose_one(files, f"{name.repo} at revision {name.revision}")
    first = first_part_name(model)
    return [file for file in files if first_part_name(file) == first]


def _small(files: Mapping[str, int]) -> list[str]:
    tokenizer = () if _TOKENIZER in files else (_SENTENCEPIECE,)
    return [file for file in (*_SMALL_FILES, *tokenizer) if file in files]


def _fetch(name: HubName, file: str, bar: Any = None) -> str:
    """Download one file, unless it is in the cache, and return its path."""
    from huggingface_hub import hf_hub_download

    return str(
        hf_hub_download(
            name.repo,
            file,
            revision=name.revision,
            cache_dir=cache_folder(),
            endpoint=os.environ.get("HF_ENDPOINT"),
            tqdm_class=bar,
        )
    )


class _Download:
    """A sequence of downloads that reports their common progress."""

    def __init__(self, name: HubName, sizes: Mapping[str, int], progress: Progress) -> None:
        self._name = name
        self._sizes = sizes
        self._progress = progress
        self._total = max(1, sum(sizes.values()))
        self._done = 0

    def run(self) -> None:
        for file, size in self._sizes.items():
            _fetch(self._name, file, _bar(self._report_within(size)))
            self._done += size
            self._progress(STAGE, self._done / self._total)

    def _report_within(self, size: int) -> Callable[[int], None]:
        """Return a function that takes the bytes of one file that were received so far."""

        def report(received: int) -> None:
            self._progress(STAGE, (self._done + min(received, size)) / self._total)

        return report


def _bar(report: Callable[[int], None]) -> Any:
    """Return a class of progress bars that show nothing and report the bytes instead."""
    from tqdm.auto import tqdm  # huggingface_hub takes a subclass of it

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._received = int(options.get("initial") or 0)
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO()})

        def update(self, n: float | None = 1) -> Any:
            self._received += int(n or 0)
            report(self._received)
            return super().update(n)

    return Reporting
