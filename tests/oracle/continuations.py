"""Recorded continuations by transformers: generating them takes longer than serving them.

Every run generates a sample of them again, `make soak` all. To write the record again, from the
repository's root: python -m tests.oracle.continuations
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tokenmill.assembly import verify_default_model
from tokenmill.core.interfaces import no_progress

from .prompts import OraclePrompt, all_prompts
from .reference import Reference, ReferenceCase

FILE = Path(__file__).with_name("continuations.json")


class Continuation(msgspec.Struct, frozen=True):
    """One prompt, and the tokens that transformers generated."""

    text: str
    is_chat: bool
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


def read_cases() -> list[ReferenceCase]:
    """The recorded cases, in the order of the prompts. Fails if a prompt has changed since."""
    found = msgspec.json.decode(FILE.read_bytes(), type=list[Continuation])
    recorded = [OraclePrompt(c.text, c.is_chat, len(c.token_ids)) for c in found]
    assert recorded == all_prompts(), f"the prompts changed: write {FILE.name} again"
    return [ReferenceCase(c.text[:40], c.prompt_token_ids, c.token_ids) for c in found]


def main() -> None:
    prompts = all_prompts()
    cases = Reference(verify_default_model(no_progress)).generate(prompts)
    rows = [
        msgspec.json.encode(Continuation(p.text, p.is_chat, c.prompt_token_ids, c.token_ids))
        for p, c in zip(prompts, cases, strict=True)
    ]
    FILE.write_bytes(b"[\n" + b",\n".join(rows) + b"\n]\n")


if __name__ == "__main__":
    main()
