"""Makes the virtual environment. Run by the Makefile with the Python that it is to have.

A machine whose Python has a suitable torch already (a GPU image, say) shares it with the
environment, so that it is not downloaded again.
"""

import subprocess
import sys
import venv

from install_torch import describe_torch


def main(folder: str) -> None:
    found = describe_torch(sys.executable)
    if found is not None:
        print(f"sharing this Python's torch {found}")
    venv.create(folder, with_pip=True, system_site_packages=found is not None, clear=True)
    subprocess.run([f"{folder}/bin/python", "--version"], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
