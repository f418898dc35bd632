"""The recording of a terminal: what the terminal showed, without long pauses, as an animation."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from .pages import ROOT, run_script

SCRIPT = run_script("record_chat.py")
SVG = "{http://www.w3.org/2000/svg}"


def frame(text: str) -> object:
    """A screen with one line of text."""
    lines: list[tuple[object, ...]] = [() for _ in range(SCRIPT["ROWS"])]
    lines[0] = (SCRIPT["Span"](0, text, "default", False),)
    return tuple(lines)


def test_a_session_in_a_shell_is_recorded() -> None:
    frames = SCRIPT["record"](["printf '\\033[1;31m%s\\n' one two"])
    *_, (_, last) = frames
    shown = [span for line in last for span in line]
    assert [(s.text, s.colour, s.is_bold) for s in shown[1:3]] == [
        ("one", "red", True),
        ("two", "red", True),
    ]
    assert SCRIPT["shortened"](frames)[-1][1] == last


def test_pauses_are_shortened_and_equal_screens_are_one() -> None:
    a, b = frame("a"), frame("b")
    kept = SCRIPT["shortened"]([(5.0, a), (5.3, a), (9.0, a), (65.0, b), (65.1, a)])
    assert [shown for _, shown in kept] == [a, b, a]
    assert [round(then, 3) for then, _ in kept] == [0.0, SCRIPT["PAUSE"], SCRIPT["PAUSE"] + 0.1]


def test_a_line_is_visible_while_it_was_on_the_screen_and_the_last_screen_without_animation() -> (
    None
):
    text = SCRIPT["draw"]([(0.0, frame("<a>")), (5.0, frame("b"))])
    first, second = ElementTree.fromstring(text).findall(f"{SVG}g")
    assert ["".join(g.itertext()) for g in (first, second)] == ["<a>", "b"]
    assert [g.attrib["class"] for g in (first, second)] == ["l0", "l1 end"]
    assert "@keyframes l0{0%{visibility:hidden}0.00%{visibility:visible}50.00%{vis" in text
    assert "@keyframes l1{0%{visibility:hidden}50.00%{visibility:visible}}" in text
    assert "prefers-reduced-motion" in text


def test_the_committed_recording_is_an_answer_to_a_question() -> None:
    words = re.findall(r">([^<]*)</text>", (ROOT / "docs/pictures/chat.svg").read_text())
    assert "$ tokenmill chat" in words
    assert any(SCRIPT["SESSION"][1] in text for text in words)
