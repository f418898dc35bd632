"""The page "Why is it slow?": what it quotes stands in the output of its command, once its cause is
planted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.test_why import explain
from tests.core.engine.test_step_log import Clock
from tokenmill.api.commands.running.explanations import explanation_text
from tokenmill.core.contract.explanation import Explanation
from tokenmill.core.shell.served import READING
from tokenmill.doctor import processor

from .pages import ROOT

PAGE = (ROOT / "docs/slow.md").read_text(encoding="utf-8")
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))


def rows(title: str) -> list[list[str]]:
    """The cells of the table below a title, without its head."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    [text] = [one for one in section if one.startswith(title)]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def two_prompts(first: int, second: int, **settings: int) -> Explanation:
    """Why the second of two prompts that come together took as long as it did."""
    bench = Clock(**settings)
    bench.ask("first", first)
    bench.ask("victim", second)
    for _ in range(3):
        bench.take(1.0)
    return bench.why("victim")


def between_tokens() -> Explanation:
    """A long prompt comes while the victim decodes."""
    bench = Clock()
    bench.ask("victim", 10, max_tokens=4)
    bench.take(1.0)
    bench.ask("other", 50)
    for seconds in (3.0, 1.0, 1.0):
        bench.take(seconds)
    return bench.why("victim")


BEFORE_THE_FIRST_TOKEN: dict[str, Callable[[], Explanation]] = {
    "waiting: token budget": lambda: two_prompts(16, 10, max_num_batched_tokens=16),
    "waiting: no free blocks": lambda: two_prompts(28, 20, num_blocks=8),
    "waiting: max_num_seqs": lambda: two_prompts(10, 10, max_num_seqs=1),
    "prompt, alone": lambda: two_prompts(10, 50),
    "prompt, others in the same steps": lambda: two_prompts(50, 10),
    "server: plugins": lambda: asyncio.run(explain("slow plugin")),
}


def test_the_page_names_each_cause_before_the_first_token() -> None:
    assert [row[0] for row in rows("The first token")] == list(BEFORE_THE_FIRST_TOKEN)


@pytest.mark.parametrize("cell", BEFORE_THE_FIRST_TOKEN)
def test_why_says_it_before_the_first_token(cell: str) -> None:
    part, words = re.split(": |, ", cell, maxsplit=1)
    lines = explanation_text(BEFORE_THE_FIRST_TOKEN[cell]()).splitlines()
    [line] = [line for line in lines if line.startswith(part)]
    assert words in line


def test_the_gap_between_two_tokens_names_the_prompt_and_the_server_the_slow_client() -> None:
    causes = [row[0] for row in rows("Tokens come unevenly")]
    assert {"the prompt of another request", "the client reads slowly"} <= set(causes)
    assert "longest gap 3.00 s at step" in (text := explanation_text(between_tokens()))
    assert ": prompt of other" in text
    lines = explanation_text(asyncio.run(explain("slow client"))).splitlines()
    assert any(line.startswith("server") and READING in line for line in lines)


def test_doctor_has_what_the_page_says_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processor, "PREBUILT", tmp_path / "none")
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "sse9")
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    checks = processor.examine_compiler, processor.examine_processor, processor.examine_threads
    found = {one.name: one.state for one in (check() for check in checks)}
    assert found["compiler"] == "warning" and found["threads"] == "note"
    cells = [row[1] for row in rows("Few tokens") if row[0] == "`tokenmill doctor`"]
    assert cells == ["a warning at `compiler` or `processor`", "a note at `threads`"]


def test_events_of_the_log_that_the_page_names_exist() -> None:
    text = "\n".join(" ".join(row[:2]) for row in rows("Few tokens") if "the log" in row[0])
    events = set(re.findall(r"`([a-z_]+)`", text)) | {"stage_done"}
    assert "engine_stats" in events
    for event in events:
        assert f'("{event}"' in SOURCES, event
