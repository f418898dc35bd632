"""Writes the table of kinds in docs/plugins/reference.md from the rows in src/core/kinds.py.

python scripts/docs/write_kinds.py

tests/docs/test_generated.py compares the file with the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.core.kinds import KINDS, Kind

PAGE = Path(__file__).parents[2] / "docs/plugins/reference.md"
BEGIN, END = "<!-- kinds -->\n", "<!-- end -->\n"
RUNS = {
    "engine": "engine, on its thread",
    "device": "engine, on the device thread",
    "worker": "worker, on the device thread",
    "api": "HTTP API, on its event loop",
}
CHOSEN_BY = {
    "all": "`[plugins] enable`",
    "request": "`[plugins] enable`, then the request's arguments",
    "model": "`quant_method` in config.json",
}


def page() -> str:
    """The page with the table as the code is now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    head = (
        "| provides | kind | chosen by | runs in | tier | suite | may have |",
        "|---|---|---|---|---|---|---|",
    )
    table = "\n".join((*head, *map(row, KINDS.values())))
    return f"{before}{BEGIN}\n{table}\n\n{END}{rest.partition(END)[2]}"


def row(kind: Kind[Any]) -> str:
    flag = f"`--{kind.name.replace('_', '-')}`"
    chosen = CHOSEN_BY.get(kind.choose, flag)
    if kind.choose == "all" and kind.flag is not None:
        chosen = f"{flag}, {chosen}"
    cells = (
        kind.does,
        f"`{kind.name.upper()}`",
        chosen,
        RUNS[kind.runs],
        kind.tier,
        f"`{kind.suite.partition(':')[2]}`",
        ", ".join(f"`{member.name}`" for member in kind.may_have),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
