"""Installs this checkout and a bundle of packages on a machine without a network.

`make_bundle.py` makes the bundle. Everything is installed into a separate folder, which
comes first on PYTHONPATH: neither the machine nor the checkout is changed. This module uses the
standard library only.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / ".gpu-bundle"
CUDA_FOLDER = REPOSITORY / "src" / "backends" / "cuda"
PIP_SECONDS = 90


class BundleError(Exception):
    """The bundle is incomplete or damaged. The message says what to do."""


def environment(site: Path) -> dict[str, str]:
    """The environment of processes that import from `site` first, and use no model hub."""
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }


def install(folder: Path, site: Path, capability: str | None) -> list[str]:
    """Install tokenmill and missing packages into `site`; returns lines that describe the result.

    `capability` is the GPU's compute capability, like "9.0". Without a bundle, this Python must
    have tokenmill already. Raises BundleError.
    """
    if not (folder / "manifest.json").exists():
        return [_without_bundle(folder)]
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    _verify(folder, [*manifest["wheels"], *manifest["libraries"]])
    wheels = [wheel for wheel in manifest["wheels"] if is_needed(wheel)]
    if wheels:
        _pip(site, *(str(folder / wheel["file"]) for wheel in wheels))
    _pip(site, "--no-build-isolation", str(REPOSITORY))
    said = [f"{wheel['name']} {wheel['version']} from the bundle" for wheel in wheels]
    return [*said, *(_unpack(folder, site, entry, capability) for entry in manifest["libraries"])]


def is_needed(wheel: Mapping[str, Any]) -> bool:
    """Whether this Python lacks the package, or has one that is too old."""
    try:
        present = metadata.version(wheel["name"])
    except metadata.PackageNotFoundError:
        return True
    return wheel["at_least"] is not None and _numbers(present) < _numbers(wheel["at_least"])


def fits(entry: Mapping[str, Any], capability: str | None) -> str | None:
    """The reason why a library of the bundle cannot be used here; None if it can."""
    if capability is None:
        return "there is no GPU"
    major, minor = _numbers(capability)
    built = [_numbers(one) for one in entry["architectures"]]
    if not any(of[0] == major and of[1] <= minor for of in built):
        return f"it was built for {', '.join(entry['architectures'])}, this GPU has {capability}"
    if entry["sources"] not in (None, fingerprint(CUDA_FOLDER)):
        return "its sources have changed since: make the bundle again"
    return None


def fingerprint(folder: Path) -> str:
    """A hash of the kernels' sources."""
    digest = hashlib.sha256()
    for path in sorted([folder / "build.py", *(folder / "csrc").iterdir()]):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _without_bundle(folder: Path) -> str:
    try:
        return f"no bundle in {folder}: tokenmill {metadata.version('tokenmill')} as installed"
    except metadata.PackageNotFoundError:
        raise BundleError(
            f"{sys.executable} has no tokenmill, and there is no bundle in {folder}: run `make "
            "gpu-bundle` on a machine with a network and copy that folder, or run `make install`"
        ) from None


def _verify(folder: Path, parts: Sequence[Mapping[str, Any]]) -> None:
    for part in parts:
        path = folder / part["file"]
        if not path.exists():
            raise BundleError(f"{path} is missing: make the bundle again")
        if hash_of(path) != part["sha256"]:
            raise BundleError(f"{path} is damaged: make the bundle again")


def _pip(site: Path, *arguments: str) -> None:
    flags = ["-qq", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--upgrade", "--target", str(site)]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment(site),
            timeout=PIP_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise BundleError(f"pip took more than {PIP_SECONDS} s for {arguments[-1]}") from None
    if done.returncode:
        raise BundleError(f"pip cannot install {arguments[-1]}: {done.stderr.strip()[-2000:]}")


def _unpack(folder: Path, site: Path, entry: Mapping[str, Any], capability: str | None) -> str:
    reason = fits(entry, capability)
    if reason is not None:
        return f"{entry['what']} of the bundle is not used: {reason}"
    place = site / entry["place"]
    place.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(folder / entry["file"]) as source, place.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return f"{entry['what']} of the bundle"


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparisons."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
