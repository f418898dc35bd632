"""The conformance kit, and what the automaton finds."""

import random

import pytest
from tokenmill_suffix_automaton.automaton import SuffixAutomaton
from tokenmill_suffix_automaton.speculator import SuffixOptions, SuffixSpeculator

from tokenmill import SamplingParams
from tokenmill.plugin import ProposalBatch, ProposalRequest
from tokenmill.testing import PackageConformance, SpeculatorConformance


class TestSuffixSpeculator(SpeculatorConformance):
    @pytest.fixture(params=[1, 3], ids=lambda n: f"min-match-{n}")
    def speculative_method(self, request: pytest.FixtureRequest) -> SuffixSpeculator:
        return SuffixSpeculator(SuffixOptions(min_match=request.param))


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "suffix-automaton"


def test_it_finds_the_longest_ending_that_occurred_before() -> None:
    rng = random.Random(1)
    for _ in range(30):
        text: list[int] = []
        automaton = SuffixAutomaton()
        for _ in range(40):
            text.append(rng.randrange(3))
            automaton.extend(text[-1:])
            endings = [text[-n:] for n in range(len(text))]
            places = [
                n
                for n, ending in enumerate(endings[1:], start=1)
                if any(text[i : i + n] == ending for i in range(len(text) - n))
            ]
            assert automaton.match == max(places, default=0)
            end = automaton.place
            assert text[end - automaton.match : end] == text[len(text) - automaton.match :]
            assert end < len(text)


@pytest.mark.parametrize(
    "text, boldness, drafted",
    [
        ("the cat sat. the ca", 1.0, "t sat."),
        ("the cat sat. the ca", 0.5, "t s"),
        ("abcabc", 2.0, "abcabc"),
        ("abcdef", 2.0, ""),
    ],
)
def test_the_longer_the_ending_the_more_is_drafted(
    text: str, boldness: float, drafted: str
) -> None:
    request = ProposalRequest(
        engine_id="a",
        token_ids=list(map(ord, text)),
        num_prompt_tokens=1,
        sampling_params=SamplingParams(),
        max_draft_tokens=8,
    )
    speculator = SuffixSpeculator(SuffixOptions(boldness=boldness))
    [draft] = speculator.propose(ProposalBatch(requests=[request]))
    assert "".join(map(chr, draft.token_ids)) == drafted
