"""docs/hooks.md says what the specs say."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from tokenmill.core.contract.events import FinishedRequest, RemovedBlock, StoredBlock
from tokenmill.core.contract.hookspecs import HOOK_API, HookSpecs
from tokenmill.core.contract.policy import RequestView
from tokenmill.core.host.hook_checks import HOOKS
from tokenmill.core.host.plugin_host import EVENTS
from tokenmill.core.requests.request_options import RequestOptions

DOCS = Path(__file__).resolve().parents[3] / "docs"
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


def sections() -> dict[str, str]:
    parts = HEADING.split((DOCS / "hooks.md").read_text())
    by_heading = zip(parts[1::2], parts[2::2], strict=True)
    return {heading[1:-1]: text for heading, text in by_heading if heading.startswith("`")}


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


PARTS: dict[str, tuple[type[Any], ...]] = {
    "on_finished": (FinishedRequest,),
    "on_prefix_cache_changed": (StoredBlock, RemovedBlock),
}
"""The classes whose fields the section of an event names, too."""


def test_the_section_of_an_event_names_its_fields_and_no_others() -> None:
    """As code: `event.field`, or `field` after the first. The same words in prose do not count."""
    by_hook = {heading.partition("(")[0]: text for heading, text in sections().items()}
    for event, hook in EVENTS.items():
        names = {f.name for f in fields(event)}
        names |= {f.name for part in PARTS.get(hook, ()) for f in fields(part)}
        assert set(re.findall(r"`(?:event\.)?([a-z]\w*)`", by_hook[hook])) == names, hook


def test_the_documents_list_every_field_of_a_request() -> None:
    text = (DOCS / "hooks.md").read_text()
    table = text[text.index("## What a request shows") :]
    names = [name for name in vars(RequestView) if not name.startswith("_")]
    names += [field.name for field in fields(RequestOptions)]
    assert len(names) > 25
    assert [name for name in names if f"`{name}`" not in table] == []
