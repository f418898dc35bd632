"""`auto` takes the first backend that can serve, with the options of its table, or says why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from tokenmill.backends.attention import choice
from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.listing import discover_plugins
from tokenmill.core.host.plugin_host import PluginHost

from ...core.plugin_packages import Packages
from .steps import SPEC

OWN = [
    info.name
    for info in discover_plugins()
    if any(provided.startswith("attention_backend:") for provided in info.provides)
]
WITHOUT_OWN = f"[plugins]\ndisable = {OWN}\n"


@dataclass(frozen=True)
class FlashOptions:
    num_splits: int = 1
    two_pass: bool = False


@dataclass(frozen=True)
class PagedOptions:
    num_splits: int = 4

    def __post_init__(self) -> None:
        if self.num_splits > 64:
            raise ValueError("num_splits must be at most 64")


class Backend:
    """A backend's class and the backend itself."""

    capabilities = None

    def __init__(self, name: str, reasons: Sequence[str], options: object) -> None:
        self.name, self.options = name, options
        self._reasons = list(reasons)

    def reasons_against(self, spec: object) -> list[str]:
        return self._reasons

    def __call__(self, spec: object) -> Backend:
        return self


class Offers:
    """A plugin with flash, paged and plain attention; `without` cannot serve."""

    TOKENMILL_API = (1, 1)

    def __init__(self, *without: str) -> None:
        self._without = without

    @hookimpl
    def register(self, registry: Registry) -> None:
        def make(name: str, options: object = None) -> Backend:
            return Backend(name, ["no GPU"] if name in self._without else [], options)

        offer = partial(registry.offer, kinds.ATTENTION_BACKEND)
        offer("flash", lambda options: make("flash", options), options=FlashOptions)
        offer("paged", lambda options: make("paged", options), options=PagedOptions)
        offer("plain", lambda: make("plain"))


def choose(packages: Packages, options: str, *without: str, **config: Any) -> Backend:
    """The backend that the table with these options leads to."""
    packages.write_settings(f"{WITHOUT_OWN}[attention_backend]\nuse = 'auto'\n{options}")
    made = choose_attention_backend(
        PluginHost.load(EngineConfig(**config), extra=[Offers(*without)])
    )
    assert made.reasons_against(SPEC) == []
    backend: Backend = made(SPEC)
    return backend


def refusal(packages: Packages, options: str, *without: str) -> str:
    with pytest.raises(ConfigError) as caught:
        choose(packages, options, *without)
    return str(caught.value)


def test_the_backend_that_is_taken_gets_the_options(packages: Packages) -> None:
    assert choose(packages, "").options == FlashOptions()
    assert choose(packages, "num-splits = 8").options == FlashOptions(num_splits=8)
    taken = choose(packages, "num_splits = 8", "flash")
    assert (taken.name, taken.options) == ("paged", PagedOptions(num_splits=8))


def test_options_without_a_choice_are_for_auto_which_is_the_default(packages: Packages) -> None:
    path = packages.write_settings("[attention_backend]\nno_such = 8", "mine.toml")
    host = PluginHost.load(EngineConfig(plugins_file=path))
    with pytest.raises(ConfigError, match="no_such: no backend of 'auto'"):
        choose_attention_backend(host)


def test_an_option_of_another_backend_is_refused_with_the_reasons(packages: Packages) -> None:
    assert refusal(packages, "two_pass = true", "flash") == (
        "plugins.toml [attention_backend] two_pass: 'auto' chose 'paged' (flash: no GPU), "
        "which has no such option: remove the option, or name in `use` the backend that has it"
    )
    assert choose(packages, "two_pass = true").options == FlashOptions(two_pass=True)


def test_an_option_that_no_backend_takes_is_refused(packages: Packages) -> None:
    assert refusal(packages, "num_split = 3") == (
        "plugins.toml [attention_backend] num_split: no backend of 'auto' "
        "(flash, paged, plain) has such an option. Known options: num_splits, two_pass. "
        "Did you mean 'num_splits'?"
    )


@pytest.mark.parametrize("without", [(), ("flash",), ("flash", "paged")])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("num_splits = 'many'", "num_splits: expected `int`, got `str`, got 'many'"),
        ("num_splits = 65", "'paged': num_splits must be at most 64"),
    ],
)
def test_a_wrong_value_is_refused_whichever_backend_would_be_taken(
    packages: Packages, options: str, message: str, without: tuple[str, ...]
) -> None:
    assert message in refusal(packages, options, *without)


def test_a_flag_that_names_a_backend_takes_it_without_the_options_of_auto(
    packages: Packages, caplog: pytest.LogCaptureFixture
) -> None:
    taken = choose(packages, "num_splits = 8", attention_backend="flash")
    assert taken.options == FlashOptions()
    assert "plugin_options_unused" in caplog.text


def test_a_flag_that_says_auto_keeps_the_options_of_auto(
    packages: Packages, caplog: pytest.LogCaptureFixture
) -> None:
    taken = choose(packages, "num_splits = 8", attention_backend="auto")
    assert taken.options == FlashOptions(num_splits=8)
    assert "plugin_options_unused" not in caplog.text


def test_all_reasons_are_told_if_none_can_serve(packages: Packages) -> None:
    packages.write_settings(WITHOUT_OWN)
    offers = Offers("flash", "paged", "plain")
    made = choose_attention_backend(PluginHost.load(EngineConfig(), extra=[offers]))
    assert made.reasons_against(SPEC) == ["flash: no GPU", "paged: no GPU", "plain: no GPU"]


def test_on_a_gpu_the_first_one_that_computes_the_same_as_torch_is_taken(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.write_settings(WITHOUT_OWN)
    made = choose_attention_backend(PluginHost.load(EngineConfig(), extra=[Offers()]))

    def check(backend: Backend, spec: object) -> list[str]:
        return ["its numbers differ"] if backend.name == "flash" else []

    monkeypatch.setattr(choice, "reasons_of_self_check", check)
    chosen, passed_over = made.choose(replace(SPEC, device=torch.device("cuda")))
    assert (chosen.name, passed_over) == ("paged", ["flash: its numbers differ"])
    assert made.choose(SPEC)[0].name == "flash"
