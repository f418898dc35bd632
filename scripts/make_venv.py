"""Makes the virtual environment. The Makefile runs it with the Python that it is made from.

make_venv.py FOLDER

A Python that has a suitable torch already (in a GPU image, say) shares its packages with the
environment, so that no second torch is downloaded.
"""

import sys
import venv

from install_torch import suitable_torch


def main(folder: str) -> None:
    """Create `folder` anew."""
    # What is made from a virtual environment shares the packages of that one's base, not its own.
    torch = suitable_torch(sys.executable) if sys.prefix == sys.base_prefix else None
    print(f"making {folder} with Python {sys.version.split()[0]}", end="")
    print(f", sharing its torch {torch}" if torch else "", flush=True)
    venv.create(folder, with_pip=True, system_site_packages=torch is not None, clear=True)


if __name__ == "__main__":
    main(sys.argv[1])
