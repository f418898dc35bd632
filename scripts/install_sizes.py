"""How much an installation downloads, and how much it needs on disk, before it begins.

pip says which wheels it would install, and from where. The end of a wheel is a list of its files
with their sizes; of a wheel on another machine only this end is read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
DRY = ("--dry-run", "--report", "-", "--use-feature=fast-deps")
"""fast-deps: read the metadata from the end of a wheel, too, if the index does not offer it apart.
Otherwise pip would download whole wheels, and again for the installation."""
TIMEOUT = 4.0
"""Seconds within which an index must answer."""
ENDS = (64 << 10, 4 << 20, 64 << 20)
"""Bytes at the end of a wheel that are read: more if its list of files is longer."""
BLOCK = 4096
"""Files take whole blocks of a disk."""
AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A wheel that pip would install."""

    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of wheels, and of the files that pip makes of them."""

    download: int
    disk: int


def plan(arguments: Sequence[str]) -> list[Planned]:
    """What `pip install` would install with these arguments, without what is installed already.

    Raises CalledProcessError with pip's reason in `stderr` if pip finds nothing.
    """
    command = [*PIP, "-qq", "install", *DRY, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [_planned(item) for item in json.loads(done.stdout)["install"]]


def _planned(item: Any) -> Planned:
    return Planned(name=item["metadata"]["name"].lower(), url=item["download_info"]["url"])


def update_pip() -> None:
    """Before version 23.3, pip downloads whole wheels to read their metadata."""
    if tuple(map(int, re.findall(r"\d+", version("pip"))[:2])) < (23, 3):
        command = [*PIP, "-qq", "install", "pip>=23.3"]
        subprocess.run(command, capture_output=True, check=False)


def sizes_of(wheels: Iterable[Planned]) -> Sizes:
    """The sizes of all wheels together. Raises OSError or BadZipFile if one cannot be read."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(_sizes, (wheel.url for wheel in wheels)))
    return Sizes(download=sum(s.download for s in found), disk=sum(s.disk for s in found))


def _sizes(url: str) -> Sizes:
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(url2pathname(parts.path))
        return Sizes(download=path.stat().st_size, disk=_installed(path))
    for num_bytes in ENDS:
        total, end = _read_end(url, num_bytes)
        try:
            return Sizes(download=total, disk=_installed(BytesIO(end)))
        except zipfile.BadZipFile:
            if num_bytes >= total:
                raise
    raise zipfile.BadZipFile(f"{url} has a list of files of more than {ENDS[-1]} bytes")


def _read_end(url: str, num_bytes: int) -> tuple[int, bytes]:
    """The size of a file, and its last bytes. Raises OSError if the server sends no such range."""
    request = urllib.request.Request(url, headers={"Range": f"bytes=-{num_bytes}"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:
            raise OSError(f"{url} cannot be read in parts")
        return int(answer.headers["Content-Range"].rpartition("/")[2]), answer.read()


def _installed(wheel: Path | BytesIO) -> int:
    """Bytes on disk. pip compiles Python files, and what it makes of them is about as large."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(
            -(-info.file_size // BLOCK) * BLOCK * (1 + info.filename.endswith(".py"))
            for info in archive.infolist()
        )
