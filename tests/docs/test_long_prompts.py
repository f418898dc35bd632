"""The table of the page on long prompts is that of the results."""

from __future__ import annotations

from .pages import run_script
from .test_generated import STALE


def test_the_page_has_the_figures_of_the_results() -> None:
    script = run_script("write_long_prompts.py")
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), STALE
