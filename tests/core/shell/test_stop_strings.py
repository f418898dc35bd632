"""Stop strings: found wherever pieces end, nothing of them leaked, nothing else held back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.shell.stop_strings import StopStringMatcher


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: the match that ends first, of those the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def naive_safe(seen: str, stops: list[str]) -> str:
    """`seen` without its longest end that begins a stop string."""
    starts = {stop[:cut] for stop in stops for cut in range(1, len(stop))}
    held = max((n for n in range(len(seen) + 1) if seen[len(seen) - n :] in starts), default=0)
    return seen[: len(seen) - held]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


few_chars = st.text(alphabet="ab·", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab·", min_size=1, max_size=6), max_size=4)


@given(text=few_chars, stops=stop_lists, include=st.booleans(), cuts=st.lists(st.integers(0, 100)))
def test_any_cutting_gives_the_text_and_stop_of_the_definition(
    text: str, stops: list[str], include: bool, cuts: list[int]
) -> None:
    """What is sent, put together, never depends on how the text was cut."""
    matcher = StopStringMatcher(tuple(stops), include)
    sent, found = "", None
    for piece in pieces_of(text, cuts):
        new, found = matcher.feed(piece)
        sent += new
        if found is not None:
            break
    assert (sent + matcher.flush(), found) == naive(text, stops, include)


@given(text=few_chars, stops=stop_lists, cuts=st.lists(st.integers(0, 100)))
def test_exactly_what_could_begin_a_stop_string_is_held_back(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Before a match, all text is sent but for the longest end that begins a stop string."""
    matcher = StopStringMatcher(tuple(stops))
    sent, seen = "", ""
    for piece in pieces_of(text, cuts):
        new, found = matcher.feed(piece)
        sent, seen = sent + new, seen + piece
        if found is not None:
            return
        assert sent == naive_safe(seen, stops)


def test_a_stop_string_over_three_pieces_is_found_and_not_sent() -> None:
    """The pieces before the last one send nothing of it."""
    matcher = StopStringMatcher(("\n\nUser:",))
    assert matcher.feed("Fine.\n") == ("Fine.", None)
    assert matcher.feed("\nUs") == ("", None)
    assert matcher.feed("er: more") == ("", "\n\nUser:")


def test_included_stop_string_is_sent_and_the_rest_is_dropped() -> None:
    """With include_in_output the text ends right after the stop string."""
    matcher = StopStringMatcher(("END",), include_in_output=True)
    assert matcher.feed("one EN") == ("one ", None)
    assert matcher.feed("D two") == ("END", "END")
    assert matcher.flush() == ""


def test_of_two_stops_that_end_together_the_longer_one_counts() -> None:
    """Nothing of the longer one is left in the text."""
    assert StopStringMatcher(("bc", "abc")).feed("xabc") == ("x", "abc")


def test_a_false_start_is_sent_as_soon_as_it_is_known_to_be_one() -> None:
    """Text that looked like a stop string is not lost."""
    matcher = StopStringMatcher(("aab",))
    assert matcher.feed("aa") == ("", None)
    assert matcher.feed("a") == ("a", None)
    assert matcher.feed("c") == ("aac", None)


def test_flush_sends_what_was_held_back() -> None:
    """A text that ends inside a stop string is sent whole."""
    matcher = StopStringMatcher(("stop",))
    assert matcher.feed("to be st") == ("to be ", None)
    assert matcher.flush() == "st"


def test_without_stop_strings_all_text_passes() -> None:
    """No stops, or only empty ones, never match."""
    matcher = StopStringMatcher(("",))
    assert matcher.feed("anything") == ("anything", None)
    assert matcher.flush() == ""
