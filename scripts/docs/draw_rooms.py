"""Draws the imports between packages: docs/pictures/rooms.svg, core.svg and backends.svg.

python scripts/docs/draw_rooms.py

A box is a sub-package or a module of the drawn package. Boxes stand in layers: a box imports only
from layers below its own. Imports for type checkers alone do not count. An arrow that follows from
other arrows is left out. A cycle of imports would be red. The script prints counts.
tests/docs/test_generated.py compares the files with the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from math import fsum
from pathlib import Path

import grimp

PICTURES = Path(__file__).parents[2] / "docs/pictures"
DRAWN = {
    "rooms.svg": "tokenmill",
    "core.svg": "tokenmill.core",
    "backends.svg": "tokenmill.backends",
}

CHAR, PADDING, HEIGHT, GAP, FLOOR = 7.4, 12, 30, 18, 74
"""Pixels: width of a character, space beside a label, height of a box, space between boxes, height
of a floor with the space above it."""
SWEEPS = 8
"""Passes over all floors that order boxes by the boxes they are connected to."""

Arrows = Mapping[str, frozenset[str]]
"""By box, the boxes that it imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The boxes of a package, and the imports between them."""

    arrows: Arrows
    floors: tuple[tuple[str, ...], ...]
    """Boxes by layer, lowest first."""
    circles: frozenset[tuple[str, str]]
    """Arrows whose target imports their source in turn, directly or not."""

    @property
    def summary(self) -> str:
        num_arrows = sum(map(len, self.arrows.values()))
        return (
            f"{len(self.arrows)} boxes, {len(self.floors)} layers, {num_arrows} arrows, "
            f"{len(self.circles)} of them in cycles"
        )


def read_house(package: str, graph: grimp.ImportGraph) -> House:
    """The direct children of `package` and the imports among them."""
    arrows = read_arrows(package, graph)
    reached = {box: reachable(box, arrows) for box in arrows}
    circles = frozenset((a, b) for a in arrows for b in arrows[a] if a in reached[b])
    return House(arrows=arrows, floors=stack(arrows, circles), circles=circles)


def read_arrows(package: str, graph: grimp.ImportGraph) -> Arrows:
    """Imports anywhere below a child count for the child."""
    prefix = f"{package}."
    arrows: dict[str, set[str]] = {
        child.removeprefix(prefix): set() for child in sorted(graph.find_children(package))
    }
    for module in graph.modules:
        source = module.removeprefix(prefix).partition(".")[0]
        if not module.startswith(prefix):
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            target = imported.removeprefix(prefix).partition(".")[0]
            if imported.startswith(prefix) and target != source:
                arrows[source].add(target)
    return {box: frozenset(targets) for box, targets in arrows.items()}


def reachable(box: str, arrows: Arrows) -> frozenset[str]:
    """Everything that `box` imports, directly or not; itself only if it is in a circle."""
    found: set[str] = set()
    new = set(arrows[box])
    while new:
        found |= new
        new = {target for source in new for target in arrows[source]} - found
    return frozenset(found)


def stack(arrows: Arrows, circles: frozenset[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """The lowest floor for each box that is above everything it imports."""
    level = dict.fromkeys(arrows, 0)
    for _ in arrows:  # a longest path has fewer arrows than there are boxes
        for box in arrows:
            below = [level[b] for b in arrows[box] if (box, b) not in circles]
            level[box] = max([level[box], *(floor + 1 for floor in below)])
    floors = [[b for b in sorted(arrows) if level[b] == n] for n in range(max(level.values()) + 1)]
    return order(floors, without_shortcuts(arrows))


def without_shortcuts(arrows: Arrows) -> Arrows:
    """Only arrows to boxes that no other imported box imports in turn."""
    reached = {box: reachable(box, arrows) for box in arrows}
    return {
        box: frozenset(
            b
            for b in targets
            if not any(b in reached[o] and o not in reached[b] for o in targets - {b})
        )
        for box, targets in arrows.items()
    }


def order(floors: Iterable[list[str]], arrows: Arrows) -> tuple[tuple[str, ...], ...]:
    """Each floor ordered by the mean position of the boxes that its boxes are connected to."""
    rows = [list(floor) for floor in floors]
    near = {b: arrows[b] | {a for a in arrows if b in arrows[a]} for b in arrows}
    for _ in range(SWEEPS):
        place = {b: (i + 0.5) / len(row) for row in rows for i, b in enumerate(row)}
        for row in rows:
            row.sort(
                # fsum: a sum that depends on the order of a set would differ from run to run
                key=lambda b: fsum(place[n] for n in near[b]) / len(near[b]) if near[b] else 0.5
            )
    return tuple(tuple(row) for row in rows)


def draw(house: House, title: str) -> str:
    """The house as an SVG."""
    widths = [sum(map(width, floor)) + GAP * (len(floor) - 1) for floor in house.floors]
    full, high = max(widths) + 2 * GAP, FLOOR * len(house.floors) + GAP
    middle: dict[str, tuple[float, float]] = {}
    for n, floor in enumerate(house.floors):
        x = (full - widths[n]) / 2
        y = high - GAP - n * FLOOR - HEIGHT
        for box in floor:
            middle[box] = (x + width(box) / 2, y)
            x += width(box) + GAP
    lines = [
        draw_arrow(middle[a], middle[b], is_circle=(a, b) in house.circles)
        for a, targets in sorted(without_shortcuts(house.arrows).items())
        for b in sorted(targets)
    ]
    boxes = [draw_box(box, *middle[box]) for floor in house.floors for box in floor]
    return "\n".join((HEAD.format(full, high, escape(title)), *lines, *boxes, "</svg>", ""))


def width(box: str) -> float:
    return len(box) * CHAR + 2 * PADDING


def draw_arrow(start: tuple[float, float], end: tuple[float, float], *, is_circle: bool) -> str:
    (x1, y1), (x2, y2) = (start[0], start[1] + HEIGHT), end
    bend = (y2 - y1) / 2
    return (
        f'<path class="{"circle" if is_circle else "arrow"}" marker-end="url(#tip)" '
        f'd="M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} '
        f'{x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"/>'
    )


def draw_box(box: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - width(box) / 2:.1f}" y="{y:.1f}" width="{width(box):.1f}" '
        f'height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:.1f}" y="{y + HEIGHT / 2 + 4.5:.1f}">{escape(box)}</text>'
    )


HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" \
height="{1:.0f}" role="img"><title>{2}</title>
<style>
  text {{ font: 13px system-ui, sans-serif; text-anchor: middle; fill: #1a2433 }}
  rect {{ fill: #eaf1fb; stroke: #5b7ea8 }}
  path {{ fill: none; stroke: #8296ab }}
  .circle {{ stroke: #c62828 }}
  #tip path {{ fill: #8296ab; stroke: none }}
  .paper {{ fill: #ffffff; stroke: none }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #dbe4f0 }}
    rect {{ fill: #1c2a3f; stroke: #6f93c0 }}
    .circle {{ stroke: #ff8a80 }}
    .paper {{ fill: #12161d }}
  }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="paper" width="100%" height="100%"/>"""


def pictures() -> dict[str, str]:
    """All pictures by file name, drawn from the code as it is now; prints their figures."""
    graph = grimp.build_graph("tokenmill", exclude_type_checking_imports=True, cache_dir=None)
    drawn = {}
    for name, package in DRAWN.items():
        house = read_house(package, graph)
        print(f"{package}: {house.summary}")
        drawn[name] = draw(house, f"Imports in {package}, from top to bottom")
    return drawn


if __name__ == "__main__":
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")
