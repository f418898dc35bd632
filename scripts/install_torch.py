"""Installs torch before other packages, so that no dependency decides which build is installed.

install_torch.py REQUIREMENT INDEX

- An installed torch >= 2.11 is kept.
- With a GPU (nvidia-smi exists) torch comes from pip's default index, whose Linux builds have CUDA.
- Without a GPU it comes from INDEX, PyTorch's index of CPU builds. If that cannot be reached, a CPU
  build of the default index is installed. A CUDA build, gigabytes that this machine cannot use, is
  refused with a message that says what to do.
- An empty INDEX always means the default index, with any build.
"""

import json
import shutil
import subprocess
import sys
import urllib.request

OLDEST = (2, 11)
TIMEOUT = 4.0
"""Seconds within which the index must answer."""


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


def brings_cuda(requirement: str) -> bool:
    """Whether torch from the default index brings CUDA. Downloads metadata, not wheels.

    Raises CalledProcessError if pip finds nothing; pip has printed the reason.
    """
    # Before version 23.3, pip downloads whole wheels to read their metadata.
    subprocess.run([*pip("install"), "pip>=23.3"], capture_output=True, check=False)
    command = [*pip("install"), "--dry-run", "--ignore-installed", "--report", "-", requirement]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    names = [item["metadata"]["name"].lower() for item in report["install"]]
    return any(name.startswith(("nvidia", "cuda")) for name in names)


def pip(command: str) -> list[str]:
    """The command line of one of pip's commands, for this Python. It prints only errors."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", command]


def install(requirement: str, *options: str) -> None:
    """Install a requirement. Raises CalledProcessError if it fails; pip has printed the reason."""
    subprocess.run([*pip("install"), *options, requirement], check=True)


def main(requirement: str, index: str) -> None:
    """Install torch as described above. Exits with a message if there is no suitable build."""
    torch = suitable_torch(sys.executable)
    if torch:
        print(f"torch {torch} is installed already")
    elif shutil.which("nvidia-smi") or not index:
        print(f"installing {requirement} from pip's default index", flush=True)
        install(requirement)
    elif can_reach(index):
        print(f"installing {requirement} for CPU from {index}", flush=True)
        install(requirement, "--index-url", index)
    else:
        print(f"{index} cannot be reached, looking at pip's default index", flush=True)
        if brings_cuda(requirement):
            sys.exit(
                f"This machine has no GPU, and pip's default index has only a CUDA build of "
                f"{requirement}. Name an index of CPU builds with TORCH_INDEX=URL or a wheel with "
                f"TORCH=PATH, or install the CUDA build with TORCH_INDEX= (empty)."
            )
        print(f"installing {requirement} for CPU from pip's default index", flush=True)
        install(requirement)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
