"""The stable tier of the interface for plugins changes only by additions with defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .pages import run_script
from .test_generated import STALE

SCRIPT = run_script("write_names.py")
broken: Callable[..., list[str]] = SCRIPT["broken"]
PROMISED = SCRIPT["promised"]()
NOW = set(SCRIPT["contract"]())


def test_what_was_promised_still_holds() -> None:
    found = broken(PROMISED, NOW)
    assert not found, (
        "this change breaks plugins (docs/plugins.md#two-tiers). Give an added argument a default, "
        "keep the old name, too, or raise HOOK_API and edit "
        "tests/docs/stable_tier.txt by hand:\n" + "\n".join(found)
    )


def test_every_addition_is_in_the_list_and_on_the_page() -> None:
    assert sorted(NOW - PROMISED) == [], STALE
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](), STALE


@pytest.mark.parametrize(
    "line",
    [
        "Load() takes other [keyword-only]: int",
        "find() takes other [9]: int",
        "Router.route() takes other [3]: int = 0",
        "Router.warm() returns None",
        "Router.weight is int",
        "kinds.ROUTER needs warm",
    ],
)
def test_an_addition_that_breaks_plugins_is_found(line: str) -> None:
    assert broken(PROMISED, NOW | {line}) == [f"added: {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "Load() takes other [keyword-only]: int = 0",
        "Load.other is int",
        "RequestView.other is int",
        "Registry.take() takes other [1]: int",
        "NewRouter.route() takes other [1]: int",
        "hook schedule takes other",
        "kinds.ROUTE needs handle",
    ],
)
def test_an_addition_that_breaks_none_is_allowed(line: str) -> None:
    assert broken(PROMISED, NOW | {line}) == []


@pytest.mark.parametrize(
    "start", ["Refusal() takes retry_after", "hook admit takes load", "Router.route() returns"]
)
def test_a_line_that_is_gone_or_changed_is_found(start: str) -> None:
    [line] = [line for line in NOW if line.startswith(start)]
    assert broken(PROMISED, NOW - {line} | {f"{line} | None"})[-1] == f"gone or changed: {line}"


def test_a_default_that_is_an_object_may_get_fields() -> None:
    def function(argument: Any = object()) -> None: ...  # noqa: B008

    assert list(SCRIPT["arguments"]("f", function)) == [
        "f() returns None",
        "f() takes argument [0]: Any = ...",
    ]
