"""Tables, captions and the plot of benchmarks are those of the committed results."""

from __future__ import annotations

import pytest

from .pages import ROOT, run_script
from .test_generated import STALE

SCRIPT = run_script("write_performance.py")


def test_the_tables_and_the_captions_are_up_to_date() -> None:
    assert (ROOT / "docs/performance.md").read_text(encoding="utf-8") == SCRIPT["page"](), STALE
    for path in SCRIPT["LANDING"]:
        assert path.read_text(encoding="utf-8") == SCRIPT["landing"](path), STALE


def test_the_plot_is_up_to_date() -> None:
    for name, text in SCRIPT["pictures"]().items():
        assert (ROOT / "docs/pictures" / name).read_text(encoding="utf-8") == text, STALE


def test_a_page_without_the_comments_is_refused() -> None:
    text = "a\n<!-- caption -->\nold\n<!-- end of caption -->\nb\n"
    filled = "a\n<!-- caption -->\nnew\n<!-- end of caption -->\nb\n"
    assert SCRIPT["fill"](text, "caption", "new") == filled
    with pytest.raises(ValueError, match="<!-- caption -->"):
        SCRIPT["fill"]("a\n", "caption", "new")
