"""The report: one file that needs no other, with the figures of the run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.bench.slow_server import SlowServer
from tests.bench.test_running import measure
from tokenmill.bench.reports.charts import NUM_BINS, bars, histogram, intervals, scatter
from tokenmill.bench.reports.comparing import Comparison
from tokenmill.bench.reports.figures import Wishes, describe
from tokenmill.bench.reports.page import compare_page, fields_page, serve_page


class Tags(HTMLParser):
    """Refuses tags that are not closed in their order, scripts and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.number = 0
        self.feed(text)
        assert not self.open and self.number > 10

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.number += 1
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawn(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(tag))


def test_the_report_of_a_run_has_its_figures_and_no_text_that_could_be_a_tag() -> None:
    measured = measure(SlowServer(statuses=[503]), [0.0, 0.0, 0.1])
    result = {"model_id": "<script>alert(1)</script>", **describe(measured, Wishes())}
    page = serve_page(result)
    Tags(page)
    assert "&lt;script&gt;" in page and f"{result['median_ttft_ms']:.2f}" in page
    assert page.count("<svg") == 5 and "prefers-color-scheme: dark" in page
    assert "http" not in re.sub(r"<svg.*?</svg>", "", page)


def test_a_run_without_an_answer_has_a_report() -> None:
    measured = measure(SlowServer(statuses=[503]), [0.0])
    page = serve_page({"model_id": "m", **describe(measured, Wishes())})
    Tags(page)
    assert "<svg" not in page and "failed" in page


def test_a_histogram_counts_every_value() -> None:
    rects = drawn(histogram([1.0, 1.0, 2.0, 5.0], "x"), "rect")
    counts = [int((one[0].text or "").rpartition(": ")[2]) for one in rects]
    assert len(rects) == NUM_BINS and sum(counts) == 4 and max(counts) == 2


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [0.0, 0.0]])
def test_equal_values_can_be_drawn(values: list[float]) -> None:
    for svg in (histogram(values, "x"), scatter(values, values, "x", "y"), bars(values, "x", "y")):
        assert "nan" not in svg and "inf" not in svg
        ElementTree.fromstring(svg)


def test_a_higher_bar_is_drawn_higher() -> None:
    low, high = drawn(bars([1.0, 2.0], "x", "y"), "rect")
    assert float(high.attrib["height"]) == pytest.approx(2 * float(low.attrib["height"]), abs=0.2)
    assert float(high.attrib["y"]) < float(low.attrib["y"])


def test_other_reports_have_all_figures() -> None:
    page = fields_page("t", {"avg_latency": 2.5, "latencies": [2.0, 3.0], "percentiles": {}})
    Tags(page)
    assert "2.5" in page and page.count("<rect") == 2
    one = Comparison(name="TTFT", first=1.0, second=2.0, ratio=2.0, low=1.5, high=2.5)
    page = compare_page([one], "before", "after<")
    Tags(page)
    assert "slower" in page and "after&lt;" in page
    _, line = drawn(intervals([("a", 1.5, 2.0, 2.5)], "x"), "line")
    assert float(line.attrib["x1"]) < float(line.attrib["x2"])
