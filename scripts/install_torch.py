"""Installs torch, first and alone, so that nothing else decides which build of it is taken.

install_torch.py REQUIREMENT INDEX

- A torch >= 2.11 that is there already is kept.
- With a GPU (nvidia-smi is found) it comes from pip's default index, whose Linux builds have CUDA.
- Without one it comes from INDEX, PyTorch's index of CPU builds. If that cannot be reached, the
  default index is asked what it has: a CPU build is taken; a CUDA build, gigabytes that this
  machine cannot use, is not, and the user is told what to do.
- An empty INDEX means: the default index, whatever it has.
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
    """The version of the torch that `python` imports; None if there is none that is new enough."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    version = done.stdout.strip()
    if done.returncode or tuple(map(int, version.split(".")[:2])) < OLDEST:
        return None
    return version


def can_reach(index: str) -> bool:
    """Whether the index answers when it is asked for torch."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=TIMEOUT):
            return True
    except (OSError, ValueError):
        return False


def brings_cuda(requirement: str) -> bool:
    """Whether the default index would install CUDA with torch. Asks for metadata, not for wheels.

    Raises CalledProcessError when pip finds nothing; it has said why then.
    """
    # Before 23.3 pip downloads whole wheels to look into them.
    subprocess.run([*pip("install"), "pip>=23.3"], capture_output=True, check=False)
    command = [*pip("install"), "--dry-run", "--ignore-installed", "--report", "-", requirement]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    names = [item["metadata"]["name"].lower() for item in report["install"]]
    return any(name.startswith(("nvidia", "cuda")) for name in names)


def pip(command: str) -> list[str]:
    """One of pip's commands, for this Python; it says nothing but errors."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", command]


def install(requirement: str, *options: str) -> None:
    """Install it, or raise CalledProcessError after pip has said what is wrong."""
    subprocess.run([*pip("install"), *options, requirement], check=True)


def main(requirement: str, index: str) -> None:
    """See the module's docstring; exits with a message when no suitable build can be had."""
    torch = suitable_torch(sys.executable)
    if torch:
        print(f"torch {torch} is there already")
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
                f"TORCH=PATH, or take the CUDA build all the same with TORCH_INDEX= (empty)."
            )
        print(f"installing {requirement} for CPU from there", flush=True)
        install(requirement)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
