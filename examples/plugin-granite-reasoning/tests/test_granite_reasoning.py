"""The conformance kit, and both forms of the sentences."""

import pytest
from tokenmill_granite_reasoning.parser import GraniteReasoning

from tokenmill.plugin import ChatFormat
from tokenmill.testing import PackageConformance, ReasoningParserConformance


class TestGraniteReasoning(ReasoningParserConformance):
    @pytest.fixture
    def reasoning_parser(self) -> GraniteReasoning:
        return GraniteReasoning()

    @pytest.fixture
    def answers(self) -> list[tuple[str, str, str]]:
        return [
            ("Here is my thought process: Oslo. Here is my response: Yes.", "Oslo.", "Yes."),
            ("Here's my thought process:\n\nOslo.Here's my response:\n\nYes.", "Oslo.", "Yes."),
            ("Here is my thought process: no end", "no end", ""),
            ("Here is my response: Yes.", "", "Here is my response: Yes."),
            ("Yes. Here is my thought process: x", "", "Yes. Here is my thought process: x"),
        ]


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "granite"


def test_it_is_chosen_for_templates_that_ask_for_a_thought_process() -> None:
    parser = GraniteReasoning()
    assert parser.reasons_against(ChatFormat(source="... Here is my thought process: ...")) == []
    assert parser.reasons_against(ChatFormat(source="{{ messages }}"))
