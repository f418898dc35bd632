"""Compiles what tests need once, for all of their processes and later runs.

Results lie in pytest's cache folder under a hash of the command, the compiler's version and all
sources, so that a change of any of them compiles again. Processes wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Compiled:
    """The file that a compiler wrote, and what it printed as it did."""

    path: Path
    report: str


def compile_once(
    command: Sequence[str], source: Path, folders: Iterable[Path], cache: Path
) -> Compiled:
    """Run `command` with `-o` and the source appended, unless the cache has its result.

    `folders` hold all that the source includes. Fails with what the compiler says.
    """
    name = _fingerprint(command, source, folders)
    path, report = cache / f"{name}.out", cache / f"{name}.txt"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                made = Path(folder, "made")
                done = subprocess.run(
                    [*command, "-o", str(made), str(source)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                report.write_text(done.stdout + done.stderr)
                made.replace(path)
    return Compiled(path, report.read_text())


def _fingerprint(command: Sequence[str], source: Path, folders: Iterable[Path]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True)
    digest = hashlib.sha256("\0".join([*command, str(source), version.stdout]).encode())
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        if path.is_file():
            digest.update(f"\0{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
