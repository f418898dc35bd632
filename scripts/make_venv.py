"""Makes the virtual environment, from the Python that runs this script.

make_venv.py FOLDER

If that Python has a suitable torch already (in a GPU image, for example), the environment shares
its packages, so that no second torch is downloaded.
"""

import sys
import venv

from install_torch import suitable_torch


def main(folder: str) -> None:
    """Create `folder`, and remove an old one."""
    # An environment made from another one would share the packages of its base Python instead.
    torch = suitable_torch(sys.executable) if sys.prefix == sys.base_prefix else None
    print(f"making {folder} with Python {sys.version.split()[0]}", end="")
    print(f", sharing its torch {torch}" if torch else "", flush=True)
    venv.create(folder, with_pip=True, system_site_packages=torch is not None, clear=True)


if __name__ == "__main__":
    main(sys.argv[1])
