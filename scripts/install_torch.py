"""Installs torch, first and alone, so that nothing else decides which build of it is taken.

    install_torch.py REQUIREMENT INDEX

- A torch >= 2.11 that can be imported already is kept.
- Without a GPU it comes from INDEX (PyTorch's index of CPU builds), because the default index serves
  builds with gigabytes of CUDA. If INDEX cannot be reached, the default index is asked for exactly
  REQUIREMENT, which some mirrors serve as a CPU build.
- With a GPU (nvidia-smi is there) it comes from the default index. INDEX "" skips it, too.
"""

import os
import shutil
import subprocess
import sys
import urllib.request

OLDEST = (2, 11)
TIMEOUT = 4.0
"""Seconds that the index may take to answer."""


def describe_torch(python: str) -> str | None:
    """The version of a torch that `python` can import and that is new enough."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    version = done.stdout.strip()
    if done.returncode or not version:
        return None
    major, minor = version.split(".")[:2]
    return version if (int(major), int(minor)) >= OLDEST else None


def can_reach(index: str) -> bool:
    """Whether the index answers at all."""
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=TIMEOUT) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def main(requirement: str, index: str) -> None:
    found = describe_torch(sys.executable)
    if found is not None:
        print(f"torch {found} is there already")
        return
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if shutil.which("nvidia-smi"):
        print(f"installing {requirement} with CUDA, for the GPU that is here")
    elif index and can_reach(index):
        print(f"installing {requirement} for the CPU from {index}")
        command += ["--index-url", index]
    else:
        print(f"installing {requirement} from pip's default index")
    sys.stdout.flush()
    os.execv(sys.executable, [*command, requirement])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
