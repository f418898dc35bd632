"""The pages and pictures that scripts write are what the code says now."""

from __future__ import annotations

import re

import tokenmill
from tests.oracle.test_bridge import MODELS
from tokenmill.core.host import plugins_file

from .pages import ROOT, run_script

PAGE = ROOT / "docs/configuration.md"
STALE = "run `make docs`: the code has changed since this file was written"


def test_the_configuration_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == run_script("write_configuration.py")["page"](), STALE


def test_the_configuration_page_names_every_table_and_key_of_plugins_toml() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`[{table}" in text for table in plugins_file._TABLES)
    assert all(f"| `{key}` |" in text for key in plugins_file._PLUGINS_KEYS)


def test_the_table_of_kinds_is_up_to_date() -> None:
    page = ROOT / "docs/plugins/reference.md"
    assert page.read_text(encoding="utf-8") == run_script("write_kinds.py")["page"](), STALE


def test_the_models_page_is_up_to_date() -> None:
    page = ROOT / "docs/models.md"
    assert page.read_text(encoding="utf-8") == run_script("write_models.py")["page"](), STALE


def test_the_models_page_names_the_bridged_models_that_are_tested() -> None:
    names = [
        name.lower().replace(" ", "").replace("-", "")
        for name in run_script("write_models.py")["BRIDGED"]
    ]
    tested = [name.partition(",")[0].replace("-", "") for name in MODELS]
    assert sorted(names) == sorted(tested)


def test_the_api_page_is_up_to_date_and_lists_exactly_the_public_names() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert text == run_script("write_api.py")["page"](), STALE
    assert sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == dir(tokenmill)


def test_the_pictures_are_up_to_date() -> None:
    for name, text in run_script("draw_rooms.py")["pictures"]().items():
        assert (ROOT / "docs/pictures" / name).read_text(encoding="utf-8") == text, STALE
