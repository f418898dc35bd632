"""Writes what the documentation says about speed, from the committed results of benchmarks.

python scripts/docs/write_performance.py

It rewrites the tables of docs/performance.md, the caption below the plot in README.md and
docs/index.md, and the plot: docs/pictures/speed-light.svg and speed-dark.svg. So after a new
measurement (benchmarks/README.md has the commands) this is the only command.
tests/docs/test_performance_page.py compares the files with the results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"
LANDING = (ROOT / "README.md", ROOT / "docs/index.md")
PICTURES = ROOT / "docs/pictures"

sys.path.insert(0, str(ROOT / "benchmarks/cpu/peers"))
from report import Measurement, markdown  # noqa: E402  (after its folder is on the path)

Run = Mapping[str, Any]
"""One file of compare.py, or one section of a file with several runs."""
WORKLOADS = {
    "single": "single stream",
    "batch-8": "batch 8",
    "batch-32": "batch 32",
    "prefill-512": "prefill 512",
}
SET = re.compile(r"[a-z0-9]+")
"""A section with only the name of an instruction set is shown; a remark hides it."""

GROUPS = (
    ("single", "1 stream"),
    ("batch-32", "32 streams at once"),
    ("mixed", "32 requests of mixed lengths"),
)
"""The workloads of the plot, with their titles."""
ENGINES = ("tokenmill", "llama.cpp", "vLLM", "transformers")
PRECISION = "bf16"
WIDTH, LEFT, BAR, STEP, TITLE, TEXT = 640, 140, 22, 29, 54, 19
"""Pixels of the plot: width, start of the bars, height of a bar, distance of bars, height of a
group's title, size of letters. A phone shows 640 pixels on 360, so letters are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """The colours of the plot on one background."""

    text: str
    own: str
    other: str


COLOURS = {
    "light": Colours(text="#1f2328", own="#0b6e4f", other="#a8b1bb"),
    "dark": Colours(text="#e6edf3", own="#3fb68b", other="#57606a"),
}


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    for path in LANDING:
        path.write_text(landing(path), encoding="utf-8")
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")


def page() -> str:
    """docs/performance.md with tables of the current results."""
    text = PAGE.read_text(encoding="utf-8")
    for name, write in TABLES.items():
        text = fill(text, name, write(read(name)))
    return text


def landing(path: Path) -> str:
    """A page that shows the plot, with the caption of the current results."""
    tables = PAGE.relative_to(path.parent)
    link = f"[All tables]({tables}#compared-with-other-engines)."
    text = f"{caption(read('cpu_peers'))} {link}"
    return fill(path.read_text(encoding="utf-8"), "caption", text)


def pictures() -> dict[str, str]:
    """The plot on a light and on a dark background, by file name."""
    run = read("cpu_peers")
    return {f"speed-{name}.svg": draw(run, name) for name in COLOURS}


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between the two comments with this name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"no '{begin.strip()}' and '{end}' in the page")
    return f"{before}{begin}{content}\n{end}{after}"


def caption(run: Run) -> str:
    """One line for the plot: unit, model, machine, date."""
    return (
        f"Tokens per second in bfloat16, median of {rounds(run)} rounds; longer is better. "
        f"SmolLM2-135M-Instruct on {machine(run)}, {run['date']}."
    )


def machine(run: Run) -> str:
    found = run["machine"]
    return f"{found['cores']} cores of an {found['processor']}"


def rounds(run: Run) -> int:
    return int(run["summary"][f"tokenmill {PRECISION}"]["single"]["rounds"])


def about(run: Run, file: str) -> str:
    """When, where and with which versions a run was measured."""
    versions = ", ".join(dict.fromkeys(run["versions"].values()))
    return (
        f"Measured on {run['date']} on {machine(run)}, torch {run['machine']['torch']}. "
        f"Versions: {versions}. All rounds: `benchmarks/results/{file}.json`."
    )


def peers_table(run: Run) -> str:
    """All engines, from cpu_peers.json."""
    measured = [Measurement(**one) for one in run["measurements"]]
    return f"{about(run, 'cpu_peers')}\n\n{markdown(measured)}"


def sets_table(runs: Mapping[str, Run]) -> str:
    """bf16 / 4-bit by instruction set, from cpu_instruction_sets.json."""
    rows = [header("bf16 / 4-bit")]
    for name, run in runs.items():
        if not SET.fullmatch(name):
            continue
        found = run["summary"]
        pairs = {
            engine: [
                [speed(found, f"{engine} {precision}", one) for precision in ("bf16", "4-bit")]
                for one in WORKLOADS
            ]
            for engine in ("tokenmill", "llama.cpp")
            if f"{engine} bf16" in found
        }
        rows += [
            row(f"{engine}, {name}", [" / ".join(f"{s:.0f}" for s in pair) for pair in cells])
            for engine, cells in pairs.items()
        ]
        if len(pairs) == 2:
            ratios = [
                f"**{' / '.join(f'{a / b:.2f}x' for a, b in zip(own, other, strict=True))}**"
                for own, other in zip(*pairs.values(), strict=True)
            ]
            rows.append(row(f"**tokenmill / llama.cpp, {name}**", ratios))
    shown = {name: run for name, run in runs.items() if SET.fullmatch(name)}
    return dated(shown, "cpu_instruction_sets") + "\n\n" + "\n".join(rows)


def shapes_table(runs: Mapping[str, Run]) -> str:
    """tokenmill / llama.cpp on the same files, from cpu_quantized_shapes.json."""
    rows = [header("tokenmill / llama.cpp", skip=("batch-32",))]
    for name, run in runs.items():
        found = run["summary"]
        for label in found:
            engine, _, kind = label.partition(" ")
            if engine == "tokenmill":
                cells = [versus(found, kind, one) for one in WORKLOADS if one in found[label]]
                rows.append(row(f"{kind}, {name}", cells))
    return dated(runs, "cpu_quantized_shapes") + "\n\n" + "\n".join(rows)


TABLES = {
    "cpu_peers": peers_table,
    "cpu_instruction_sets": sets_table,
    "cpu_quantized_shapes": shapes_table,
}
"""What writes the table of each result file."""


def dated(runs: Mapping[str, Run], file: str) -> str:
    """`about` for several runs, with the date of each."""
    by_date: dict[str, list[str]] = {}
    for name, run in runs.items():
        by_date.setdefault(run["date"], []).append(name)
    dates = ", ".join(f"{day} ({', '.join(names)})" for day, names in by_date.items())
    [last, *_] = runs.values()
    return about({**last, "date": dates}, file)


def header(title: str, skip: Sequence[str] = ()) -> str:
    titles = [text for name, text in WORKLOADS.items() if name not in skip]
    return f"{row(title, titles)}\n{'|---' * (len(titles) + 1)}|"


def row(title: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([title, *cells])} |"


def speed(found: Mapping[str, Any], label: str, workload: str) -> float:
    return float(found[label][workload]["median"])


def versus(found: Mapping[str, Any], kind: str, workload: str) -> str:
    own, other = (speed(found, f"{name} {kind}", workload) for name in ("tokenmill", "llama.cpp"))
    return f"{own:.0f} / {other:.0f}, {own / other:.2f}x"


def draw(run: Run, background: str) -> str:
    """Bars per workload, scaled to the fastest engine of the workload. As SVG.

    The site shows `speed-light.svg#only-light` on light pages only; the id is the link's target.
    """
    colours = COLOURS[background]
    parts, y = [], 0
    for workload, title in GROUPS:
        found = {
            name: speed(run["summary"], f"{name} {PRECISION}", workload)
            for name in ENGINES
            if workload in run["summary"].get(f"{name} {PRECISION}", {})
        }
        parts.append(f'<text class="title" x="0" y="{y + TITLE - 24}">{escape(title)}</text>')
        y += TITLE
        room = WIDTH - LEFT - 76  # the figure stands right of the bar
        for name, value in found.items():
            kind = "own" if name == "tokenmill" else "other"
            width = round(room * value / max(found.values()))
            base = y - 12 + BAR - 6
            parts += [
                f'<text class="{kind}" x="{LEFT - 10}" y="{base}" text-anchor="end">{name}</text>',
                f'<rect class="{kind}" x="{LEFT}" y="{y - 12}" width="{width}" height="{BAR}"/>',
                f'<text class="{kind}" x="{LEFT + width + 8}" y="{base}">{value:.0f}</text>',
            ]
            y += STEP
    label = f"Tokens per second of {', '.join(ENGINES)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="only-{background}" role="img" '
        f'viewBox="0 0 {WIDTH} {y}" aria-label="{label}" '
        f'font-family="system-ui, sans-serif" font-size="{TEXT}">\n'
        f"<style>text {{ fill: {colours.text} }} .title, text.own {{ font-weight: 600 }} "
        f"rect.own {{ fill: {colours.own} }} rect.other {{ fill: {colours.other} }}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
