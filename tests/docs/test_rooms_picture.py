"""The pictures of imports: layers, cycles, and arrows that are left out."""

from __future__ import annotations

from xml.etree import ElementTree

import grimp

from .pages import run_script

SCRIPT = run_script("draw_rooms.py")


def graph(*imports: tuple[str, str]) -> grimp.ImportGraph:
    found = grimp.ImportGraph()
    for module in {"p"} | {f"p.{name}" for pair in imports for name in pair}:
        found.add_module(module)
    for importer, imported in imports:
        found.add_import(importer=f"p.{importer}", imported=f"p.{imported}")
    return found


def test_a_box_stands_above_all_that_it_imports() -> None:
    house = SCRIPT["read_house"]("p", graph(("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")))
    assert [set(floor) for floor in house.floors] == [{"c"}, {"b", "d"}, {"a"}]
    assert house.summary == "4 boxes, 3 layers, 4 arrows, 0 of them in cycles"


def test_an_arrow_that_others_imply_is_left_out() -> None:
    kept = SCRIPT["without_shortcuts"]({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    assert kept == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_circles_are_found_and_drawn() -> None:
    house = SCRIPT["read_house"]("p", graph(("a", "b"), ("b", "a"), ("b", "c")))
    assert house.circles == {("a", "b"), ("b", "a")}
    picture = SCRIPT["draw"](house, "p")
    assert picture.count('class="circle"') == 2
    assert ElementTree.fromstring(picture).tag.endswith("svg")
