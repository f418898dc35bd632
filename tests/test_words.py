"""Docstrings and comments of the code, and the documentation, do without some phrases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import DOCS, ROOT, name_of, prose

OPENINGS = r"(?:What|Of|Who|Whose|Which|Where|How|That)\b"
PLACES = "after|at|before|for|if|in|inside|of|that|those|what|when|where|with|without"
REFUSED = {
    rf"\A{OPENINGS}": "begin with the noun: 'The limit that ...', not 'What limits ...'",
    rf", also (?:{PLACES})\b|(?<!and )\balso (?:after|if|those|without)\b": "even",
    r"\btold\b": "reported, or computed",
    r"(?<!half )(?<!twice )(?<!times )\b(?:as|so) many\b": "N, or the number of ...",
    r"\bif there is none\b": "or None, or 'without ...'",
    r"(?:\A|[.] )Those\b": "repeat the noun",
}
"""Patterns, and what to write instead."""
COMMENT = re.compile(r"(?:^|\s)# (.*)")
NATIVE_COMMENT = re.compile(r"^[ ]*// .*(?:\n[ ]*//.*)*|(?<=\S)[ ]+// .*", re.MULTILINE)


def texts(source: str) -> Iterator[str]:
    """The comments of a Python file, and the docstrings of all that it defines, fields included."""
    yield from COMMENT.findall(source)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text.strip()


def native_texts(source: str) -> Iterator[str]:
    """The comments of a C++ or CUDA file. Comments on consecutive lines are one text."""
    for found in NATIVE_COMMENT.findall(source):
        yield re.sub(r"^\s*//", "", found, flags=re.MULTILINE).strip()


def faults(text: str) -> list[str]:
    flat = " ".join(text.split())
    return [
        f"{flat[max(0, found.start() - 30) :][:80]!r}: {instead}"
        for pattern, instead in REFUSED.items()
        for found in re.finditer(pattern, flat)
    ]


def test_the_code_has_no_refused_phrase() -> None:
    readers = {".py": texts, ".h": native_texts, ".cpp": native_texts, ".cu": native_texts}
    files = {ending: sorted((ROOT / "src").rglob(f"*{ending}")) for ending in readers}
    assert len(files[".py"]) > 500 and len(files[".h"]) > 50 and files[".cpp"] and files[".cu"]
    found = [
        f"{name_of(file)}: {fault}"
        for ending, read in readers.items()
        for file in files[ending]
        for text in read(file.read_text(encoding="utf-8"))
        for fault in faults(text)
    ]
    assert not found, "\n".join(found)


def test_the_documentation_has_no_refused_phrase() -> None:
    found = [f"{name_of(page)}: {fault}" for page in DOCS for fault in faults(prose(page))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "What a step did.",
        "Ends the process, also if it hangs.",
        "The caller is told.",
        "Open as many plans as allowed.",
        "The name, None if there is none.",
        "Some requests run. Those without room wait.",
    ],
)
def test_a_refused_phrase_is_found(text: str) -> None:
    assert len(faults(text)) == 1
    assert [fault for found in texts(f'x = 1\n"""{text}"""') for fault in faults(found)]
    assert [fault for found in texts(f"x = 1  # {text}") for fault in faults(found)]
    for source in (
        f"x = 1;  // {text}",
        f"// {text}\nint x;",
        f"// {text.replace(' ', chr(10) + '// ')}",
    ):
        assert [fault for found in native_texts(source) for fault in faults(found)]


def test_words_in_another_sense_are_allowed() -> None:
    assert faults("It is twice as many. It also has some. Whether it is; and those that run.") == []
