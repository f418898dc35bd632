"""docs/hooks.md says what the specs say."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from tokenmill.core.contract.events import FinishedRequest
from tokenmill.core.contract.hookspecs import HOOK_API, HookSpecs
from tokenmill.core.contract.policy import RequestView
from tokenmill.core.host.hook_checks import HOOKS
from tokenmill.core.host.plugin_host import EVENTS

DOCS = Path(__file__).resolve().parents[3] / "docs"
HEADING = re.compile(r"^## `(.*)`$", re.MULTILINE)


def sections() -> dict[str, str]:
    parts = HEADING.split((DOCS / "hooks.md").read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_every_hook_has_a_heading_with_its_signature_in_the_order_of_the_specs() -> None:
    signatures = []
    for hook in HOOKS:
        names = list(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]
        signatures.append(f"{hook}({', '.join(names)})")
    assert list(sections()) == signatures
    assert f"hook API {HOOK_API}" in (DOCS / "hooks.md").read_text()


def test_every_section_begins_with_the_first_sentence_of_its_spec() -> None:
    for heading, section in sections().items():
        spec = inspect.getdoc(getattr(HookSpecs, heading.partition("(")[0])) or ""
        first = flat(spec).partition(" On error:")[0].partition(" When:")[0]
        assert flat(section).startswith(first)


def words_of_code(section: str) -> set[str]:
    """The names in a section's code spans: a field counts as named only there, never in prose."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))


def test_every_field_of_an_event_is_named() -> None:
    by_hook = {heading.partition("(")[0]: text for heading, text in sections().items()}
    for event, hook in EVENTS.items():
        names = [f.name for f in fields(event)]
        names += [f.name for f in fields(FinishedRequest)] if hook == "on_finished" else []
        assert set(names) <= words_of_code(by_hook[hook]), hook


def test_the_documents_list_every_field_of_a_request() -> None:
    text = (DOCS / "hooks.md").read_text()
    table = text[text.index("## What a request shows") :]
    names = [name for name in vars(RequestView) if not name.startswith("_")]
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in table] == []
