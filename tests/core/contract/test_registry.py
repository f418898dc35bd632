"""Registry: offers by name, and what is built from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from msgspec import Meta

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.plugin_info import OptionInfo, Source
from tokenmill.core.contract.policy import StepView
from tokenmill.core.contract.registry import PluginContext, Registry
from tokenmill.core.errors import ConfigError, PluginError

ACME = Source(plugin="acme-sjf", distribution="acme-sjf", version="1.0")
RIVAL = Source(plugin="rival", distribution="rival-pack", version="2.1")


@dataclass(frozen=True, kw_only=True)
class Options:
    max_seqs: Annotated[int, Meta(ge=1)] = field(default=8, metadata={"help": "most at once"})
    ratio: float = 0.5
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ValueError(f"ratio is at most 1, got {self.ratio}")


class Scheduler:
    def __init__(self, options: Options | None = None) -> None:
        self.options = options

    @hookimpl
    def schedule(self, step: StepView) -> None: ...


@dataclass(frozen=True)
class Needy:
    path: str


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    with registry.accepting(ACME):
        registry.offer(kinds.SCHEDULER, "sjf", Scheduler, options=Options, aliases=["short_first"])
        registry.offer(kinds.SCHEDULER, "plain", Scheduler)
        yield registry


def error_of(registry: Registry, *arguments: Any, **named: Any) -> str:
    with pytest.raises(PluginError) as caught:
        registry.build(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_options_reach_the_factory_validated(registry: Registry) -> None:
    built = registry.build("scheduler", "sjf", {"max_seqs": 3, "ratio": 1, "names": ["a"]})
    assert built.options == Options(max_seqs=3, ratio=1.0, names=("a",))


def test_hyphen_and_underscore_are_equal_in_names_aliases_and_options(registry: Registry) -> None:
    assert registry.find("scheduler", "short-first") is registry.find("scheduler", "short_first")
    assert registry.build("scheduler", "short_first", {"max-seqs": 2}).options.max_seqs == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_seq": 1},
            "[scheduler] max_seq: 'sjf' has no such option. "
            "It takes: max_seqs, ratio, names. Did you mean 'max_seqs'?",
        ),
        ({"max_seqs": "8"}, "[scheduler] max_seqs: expected `int`, got `str`, got '8'"),
        ({"max_seqs": 0}, "[scheduler] max_seqs: expected `int` >= 1, got 0"),
        ({"names": [1]}, "[scheduler] names: expected `str`, got `int` - at `$[0]`, got [1]"),
        ({"ratio": 2.0}, "[scheduler] 'sjf': ratio is at most 1, got 2.0"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    registry: Registry, options: dict[str, object], message: str
) -> None:
    assert error_of(registry, "scheduler", "sjf", options) == message


def test_a_provider_without_options_takes_none(registry: Registry) -> None:
    message = error_of(registry, "scheduler", "plain", {"x": 1}, where="my.toml [scheduler]")
    assert message == "my.toml [scheduler] x: 'plain' takes no options"


def test_a_missing_option_is_named(registry: Registry) -> None:
    registry.offer(kinds.OBSERVER, "writer", lambda context, options: options, options=Needy)
    message = error_of(registry, "observer", "writer", where="[observer.writer]")
    assert message == "[observer.writer] 'writer' needs the option 'path'"


def test_an_unknown_name_says_what_is_known_installed_and_left_out(registry: Registry) -> None:
    with pytest.raises(PluginError) as caught:
        registry.find(
            "scheduler",
            "sjff",
            not_enabled=["acme-dup"],
            left_out=["plugin 'acme-broken' (acme-broken 1.0) failed to load: no"],
        )
    assert str(caught.value) == (
        "no scheduler named 'sjff'. Did you mean 'sjf'? Known: plain, short-first, sjf. "
        "Installed but not enabled: acme-dup. "
        "A provider with another name than its plugin needs `[plugins] enable`. "
        "Left out: plugin 'acme-broken' (acme-broken 1.0) failed to load: no."
    )
    assert "no attention backend named 'x'. Known: none." in error_of(
        registry, "attention_backend", "x"
    )


def test_an_unknown_kind_says_which_there_are(registry: Registry) -> None:
    misspelt: Any = kinds
    with pytest.raises(AttributeError) as caught:
        misspelt.SCHEDULAR  # noqa: B018
    assert str(caught.value).startswith(
        "there is no kind 'SCHEDULAR'. Did you mean 'SCHEDULER'? Known: SCHEDULER, "
    )
    named: Any = "scheduler"
    with pytest.raises(PluginError, match="'mine' needs a kind, such as kinds"):
        registry.offer(named, "mine", Scheduler)


def test_a_message_lists_eight_names_at_most(registry: Registry) -> None:
    for i in range(8):
        registry.offer(kinds.SCHEDULER, f"number-{i}", Scheduler)
    with pytest.raises(PluginError) as caught:
        registry.find("scheduler", "x", not_enabled=[f"other-{i}" for i in range(9)])
    message = str(caught.value)
    assert "number-7 and 3 more. Installed" in message
    assert "other-7 and 1 more." in message


def test_a_name_offered_twice_is_refused_and_both_distributions_named(registry: Registry) -> None:
    with registry.accepting(RIVAL):
        registry.offer(kinds.SCHEDULING_POLICY, "sjf", lambda: Scheduler())  # type: ignore[arg-type, return-value]
        with pytest.raises(PluginError) as caught:
            registry.offer(kinds.SCHEDULER, "short-first", Scheduler)
    assert str(caught.value) == (
        "scheduler 'short-first' is provided by both plugin 'acme-sjf' (acme-sjf 1.0) and "
        "plugin 'rival' (rival-pack 2.1); disable one in plugins.toml"
    )


def test_what_a_failed_plugin_offered_is_forgotten(registry: Registry) -> None:
    before = registry.providers()
    with pytest.raises(SystemExit), registry.accepting(RIVAL):
        registry.offer(kinds.SCHEDULER, "rival", Scheduler)
        raise SystemExit
    assert registry.providers() == before
    registry.withdraw(ACME)
    assert registry.providers() == ()


def test_an_offer_after_the_start_is_refused() -> None:
    registry = Registry()
    with registry.accepting(ACME):
        pass
    with pytest.raises(PluginError, match="came too late"):
        registry.offer(kinds.SCHEDULER, "late", Scheduler)


def test_offers_that_cannot_work_are_refused(registry: Registry) -> None:
    with pytest.raises(PluginError, match="needs a factory"):
        registry.offer(kinds.OBSERVER, "x", None)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="must be a dataclass"):
        registry.offer(kinds.OBSERVER, "x", Scheduler, options=dict)
    with pytest.raises(PluginError, match="a preemption mode has no switch: offer"):
        registry.offer(kinds.PREEMPTION_MODE, "x", Scheduler, switch=True)


def test_a_factory_that_raises_is_blamed_on_its_plugin(registry: Registry) -> None:
    def explode() -> Scheduler:
        raise OSError("no such device")

    registry.offer(kinds.SCHEDULER, "bad", explode)
    assert error_of(registry, "scheduler", "bad") == (
        "scheduler 'bad' of plugin 'acme-sjf' (acme-sjf 1.0) could not be built: "
        "OSError: no such device"
    )


def test_a_provider_without_its_methods_is_refused(registry: Registry) -> None:
    registry.offer(kinds.SCHEDULING_POLICY, "bad", object)  # type: ignore[arg-type]
    assert "lacks key and uses_priority" in error_of(registry, "scheduling_policy", "bad")
    registry.offer(kinds.SCHEDULER, "none", lambda: None)  # type: ignore[arg-type, return-value]
    assert "lacks schedule" in error_of(registry, "scheduler", "none")


def test_observers_are_given_the_context_and_may_stay_out(registry: Registry) -> None:
    context = PluginContext(config=EngineConfig(max_num_seqs=4))
    registry.offer(kinds.OBSERVER, "seen", lambda context: context)
    registry.offer(
        kinds.OBSERVER, "tuned", lambda context, options: (context, options), options=Options
    )
    registry.offer(kinds.OBSERVER, "absent", lambda context: None)
    assert registry.build("observer", "seen", context=context) is context
    assert registry.build("observer", "tuned", context=context) == (context, Options())
    assert registry.build("observer", "absent", context=context) is None


def test_a_provider_describes_its_options(registry: Registry) -> None:
    described = registry.find("scheduler", "sjf").describe()
    assert described.aliases == ("short-first",)
    assert described.options == (
        OptionInfo(name="max_seqs", type="int", default="8", help="most at once"),
        OptionInfo(name="ratio", type="float", default="0.5"),
        OptionInfo(name="names", type="tuple[str, ...]", default="()"),
    )
    registry.offer(kinds.OBSERVER, "writer", lambda context, options: options, options=Needy)
    assert registry.find("observer", "writer").describe().options[0].default == "required"


def test_a_plugin_error_is_a_config_error() -> None:
    assert issubclass(PluginError, ConfigError)
