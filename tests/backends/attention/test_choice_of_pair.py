"""Two attention backends may be named: one for prompts and chunks, one for decodes."""

from __future__ import annotations

import pytest

from tokenmill.backends.attention.pair import build_pair
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost

from ...core.plugin_packages import Packages
from .test_choice import Backend, FlashOptions, Offers, PagedOptions


def load(packages: Packages, settings: str = "", flag: str | None = None) -> PluginHost:
    packages.write_settings(settings)
    return PluginHost.load(EngineConfig(attention_backend=flag), extra=[Offers()])


def pair(host: PluginHost) -> list[Backend]:
    choice = host.choice("attention_backend")
    prefill, decode = build_pair(host.registry, choice)
    return [prefill, decode]


@pytest.mark.parametrize("flag", ["flash,plain", "flash, plain"])
def test_both_are_named_the_one_for_decodes_last(packages: Packages, flag: str) -> None:
    host = load(packages, flag=flag)
    assert [backend.name for backend in pair(host)] == ["flash", "plain"]
    assert host.names["attention_backend"] == "flash,plain"


def test_both_are_shown_as_chosen(packages: Packages) -> None:
    host = load(packages, "[attention_backend]\nuse = 'cpu,torch'")
    chosen = [name for info in host.plugins() for name in info.chosen]
    assert {"attention_backend:cpu", "attention_backend:torch"} <= {*chosen}


def test_each_gets_the_options_that_it_takes(packages: Packages) -> None:
    table = "[attention_backend]\nuse = 'flash,paged'\nnum-splits = 8\ntwo_pass = true"
    first, second = pair(load(packages, table))
    assert first.options == FlashOptions(num_splits=8, two_pass=True)
    assert second.options == PagedOptions(num_splits=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("use = 'flash,flahs'", "no attention backend named 'flahs'"),
        ("use = 'flash,paged,plain'", "takes one backend, or two"),
        (
            "use = 'plain,flash'\nnum_split = 3",
            "num_split: neither 'plain' nor 'flash' has such an option. Did you mean 'num_splits'?",
        ),
    ],
)
def test_what_cannot_be_is_refused(packages: Packages, settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair(load(packages, f"[attention_backend]\n{settings}"))
