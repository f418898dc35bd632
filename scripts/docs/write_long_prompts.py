"""Writes the table of docs/long-prompts.md from the results of benchmarks/long_prompts.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/long-prompts.md"
RESULTS = ROOT / "benchmarks/results/long_prompts.json"
_BEGIN, _END = "<!-- figures -->\n", "<!-- end of figures -->"
_COLUMNS = {
    "ttft": "first token",
    "cpu": "CPU time of all threads",
    "ttft_cached": "with a cached beginning",
    "pause_max": "longest pause",
}


def page() -> str:
    """The page with the table of the last results."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return before + begin + table(json.loads(RESULTS.read_text(encoding="utf-8"))) + end + after


def table(results: dict[str, Any]) -> str:
    """A row per setting and length, and a line about the machine."""
    all_figures = [one for by_length in results["seconds"].values() for one in by_length.values()]
    keys = [key for key in _COLUMNS if any(key in one for one in all_figures)]
    lines = [
        f"| setting | tokens | {' | '.join(_COLUMNS[key] for key in keys)} |",
        "|---|---|" + "---|" * len(keys),
    ]
    for setting, by_length in results["seconds"].items():
        name = re.sub(r"--.*", lambda flag: f"`{flag[0]}`", setting)
        for length, figures in by_length.items():
            cells = [f"{figures[key]:.1f} s" if key in figures else "" for key in keys]
            lines.append(f"| {name} | {int(length):,} | {' | '.join(cells)} |")
    loads = results["load_at_the_start"].values()
    machine = results["machine"]
    note = (
        f"{machine['processor']}, {machine['cores']} cores, {results['date']}. The load average "
        f"before the settings was {min(loads):.0f} to {max(loads):.0f}"
    )
    if max(loads) > machine["cores"]:
        note += ": other programs used the cores, too, and a quiet machine is several times faster"
    return "\n".join(lines) + f"\n\n{note}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
