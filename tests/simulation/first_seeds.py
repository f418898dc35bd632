"""For each planted bug the first seed that finds it, so that the tests need not search.

When the core draws differently, a recorded seed may no longer find its bug; the test then searches
all other seeds, which takes longer. To write `first_seeds.json` again, from the repository's root:
python -m tests.simulation.first_seeds
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.testing.quiet_logs import quiet_logs

from .planted_media_bugs import ALL_BUGS as BUGS
from .planting import Planter, find_first

FILE = Path(__file__).with_name("first_seeds.json")


def read_first_seeds() -> dict[str, int]:
    """The recorded seeds, by the bug's name."""
    found: dict[str, int] = json.loads(FILE.read_text())
    return found


def main() -> None:
    found = {}
    for name, bug in BUGS.items():
        with pytest.MonkeyPatch.context() as patch, quiet_logs():
            bug.plant(Planter(patch))
            found[name] = find_first(bug, bug.seeds)
        print(f"{name}: {found[name]}", flush=True)
    FILE.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
