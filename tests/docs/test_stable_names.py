"""The stable names for plugins keep what they had, and the page of public names is up to date."""

from __future__ import annotations

import pytest

from .pages import ROOT, run_script

STABLE = ROOT / "tests/docs/stable_names.txt"
ADVICE = (
    "a stable name changed, which breaks plugins: add a default or another name, or raise HOOK_API "
    "and write the list again (scripts/docs/write_names.py)"
)


def forbidden(before: list[str], after: list[str]) -> list[str]:
    """What was removed or changed, and what is new and has no default where others depend on it."""
    had = {line.partition("(")[0].partition(".")[0] for line in before}
    new = [line for line in after if line not in before and ": required" in line]
    calls = {line.partition("(")[0] for line in before}
    return [line for line in before if line not in after] + [
        line
        for line in new
        if line.partition(".")[0].partition("(")[0] in had and _belongs_to_known(line, calls)
    ]


def _belongs_to_known(line: str, calls: set[str]) -> bool:
    """A field of a known class, or a parameter of a known function or method."""
    return "(" not in line or line.partition("(")[0] in calls


def test_stable_names_only_get_additions_with_defaults() -> None:
    before = STABLE.read_text(encoding="utf-8").splitlines()
    assert forbidden(before, run_script("write_names.py")["stable_names"]()) == [], ADVICE


def test_the_list_of_stable_names_and_the_page_are_up_to_date() -> None:
    script = run_script("write_names.py")
    assert STABLE.read_text(encoding="utf-8").splitlines() == script["stable_names"](), "make docs"
    page = ROOT / "docs/plugins/names.md"
    assert page.read_text(encoding="utf-8") == script["page"](), "make docs"


BEFORE = ["Load", "Load.num_running: required", "find", "find(text: required)", "Load.ask()"]


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (BEFORE, []),
        ([*BEFORE, "Load.extra: optional", "find(limit: optional)", "Load.other()"], []),
        ([*BEFORE, "New", "New.field: required", "Load.other(text: required)"], []),
        ([*BEFORE, "Load.extra: required"], ["Load.extra: required"]),
        ([*BEFORE, "find(limit: required)"], ["find(limit: required)"]),
        ([*BEFORE, "Load.ask(who: required)"], ["Load.ask(who: required)"]),
        (BEFORE[1:], ["Load"]),
        ([*BEFORE[:1], "Load.num_running: optional", *BEFORE[2:]], ["Load.num_running: required"]),
    ],
)
def test_a_change_that_breaks_plugins_is_found(after: list[str], found: list[str]) -> None:
    assert forbidden(BEFORE, after) == found
