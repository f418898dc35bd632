"""What flags, JSON and plugins.toml say about speculation, together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import ConfigError, TokenmillError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.plugins.speculative.ngram import NgramSpeculator

from .drafting_plugins import Named

pytestmark = pytest.mark.usefixtures("own_folder")


def load(*extra: object, **options: Any) -> PluginHost:
    return PluginHost.load(EngineConfig(**options), extra=extra)


def lengths(host: PluginHost) -> tuple[int, int]:
    """What the n-gram method looks up: shortest and longest."""
    assert host.speculator is not None
    provider = host.speculator.provider
    assert isinstance(provider, NgramSpeculator)
    return provider.lengths[0], provider.lengths[-1]


def test_nothing_is_drafted_unless_asked_for() -> None:
    host = load()
    assert host.names["speculative_method"] == "none"
    assert host.speculator is None and host.speculation_limits is None
    host.flush()


def test_a_flag_switches_it_on_with_the_documented_defaults() -> None:
    host = load(speculative_method="ngram")
    assert lengths(host) == (2, 4)
    limits = host.speculation_limits
    assert limits is not None
    assert limits.num_speculative_tokens == 5
    assert not limits.needs_lookahead
    assert host.names["draft_length"] == "adaptive"


def test_flags_set_the_length() -> None:
    limits = load(speculative_method="ngram", num_speculative_tokens=3).speculation_limits
    assert limits is not None
    assert limits.num_speculative_tokens == 3


CONFIG = '{"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 3}'


@pytest.mark.parametrize("config", [CONFIG, {"method": "ngram", "prompt_lookup_max": 3}], ids=type)
def test_json_says_all_of_it_as_in_vllm(config: Any) -> None:
    """Programs that embed the engine may give a dict instead."""
    host = load(speculative_config=config)
    assert lengths(host) == (2, 3)
    assert host.speculation_limits is not None
    expected = 7 if config is CONFIG else 5
    assert host.speculation_limits.num_speculative_tokens == expected


def test_json_and_flags_complete_each_other_and_the_file(own_folder: Path) -> None:
    (own_folder / "plugins.toml").write_text(
        "[speculative_method]\nuse = 'ngram'\nprompt_lookup_max = 8\nprompt_lookup_min = 4\n"
    )
    host = load(speculative_config='{"prompt_lookup_min": 6}', num_speculative_tokens=2)
    assert lengths(host) == (6, 8)
    assert host.speculation_limits is not None
    assert host.speculation_limits.num_speculative_tokens == 2


@pytest.mark.parametrize("name", ["with-model", "with_model"])
def test_a_model_is_an_option_of_the_method(name: str) -> None:
    host = load(Named("with-model"), speculative_method=name, speculative_model="small")
    assert host.speculator is not None
    assert host.speculator.provider.options.model == "small"  # type: ignore[attr-defined]


def test_a_model_alone_means_the_draft_model() -> None:
    assert load(speculative_model="small").names["speculative_method"] == "draft-model"
    host = load(speculative_config='{"model": "a"}')
    assert host.names["speculative_method"] == "draft-model"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_speculative_tokens": 0},
            "must be between 1 and 16, got 0; --speculative-method none",
        ),
        ({"num_speculative_tokens": 17}, "must be between 1 and 16, got 17"),
        ({"speculative_config": '{"num_speculative_tokens": "5"}'}, "and 16, got '5'"),
        ({"speculative_config": '{"num_speculative_tokens": true}'}, "and 16, got True"),
        ({"speculative_config": '{"method": 3}'}, "--speculative-method must be a text, got 3"),
        ({"speculative_config": "ngram"}, 'must be a JSON object, as in \'{"method": "ngram"'),
        ({"speculative_config": "[1]"}, "must be a JSON object"),
        (
            {"speculative_method": "ngram", "speculative_config": '{"method": "none"}'},
            "--speculative-method is 'ngram' and --speculative-config has 'method': 'none'; give",
        ),
        (
            {"num_speculative_tokens": 2, "speculative_config": '{"num_speculative_tokens": 3}'},
            "--num-speculative-tokens is 2 and --speculative-config has",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_the_configuration_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_method": "ngrm"}, "no speculative method named 'ngrm'"),
        ({"speculative_method": "ngrm"}, "Did you mean 'ngram'?"),
        ({"num_speculative_tokens": 3}, "--num-speculative-tokens has no effect without a method"),
        ({"speculative_config": "{}"}, "--speculative-config has no effect without a method"),
        (
            {"speculative_config": '{"method": "ngram", "prompt_lookup_mx": 3}'},
            "--speculative-config prompt_lookup_mx: 'ngram' has no such option",
        ),
        (
            {"speculative_config": '{"method": "ngram", "prompt_lookup_max": 0}'},
            "--speculative-config prompt_lookup_max: expected `int` >= 1",
        ),
        (
            {
                "speculative_config": '{"method": "ngram", '
                '"prompt_lookup_min": 5, "prompt_lookup_max": 4}'
            },
            "prompt_lookup_min is 5, more than prompt_lookup_max, which is 4",
        ),
        (
            {"speculative_method": "ngram", "speculative_model": "small"},
            "--speculative-model has no effect: the speculative method 'ngram' takes no model",
        ),
        (
            {"speculative_method": "with-model"},
            "'with-model' needs a model: --speculative-model PATH",
        ),
    ],
)
def test_what_does_not_fit_the_method_is_refused_at_start(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenmillError) as caught:
        load(Named("with-model"), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_that_is_switched_off_takes_the_other_flags_along() -> None:
    assert load(speculative_method="none", num_speculative_tokens=3).speculator is None


def test_a_provider_without_propose_is_refused() -> None:
    class Plugin:
        @hookimpl
        def register(self, registry: Registry) -> None:
            registry.offer(kinds.SPECULATIVE_METHOD, "empty", object)  # type: ignore[arg-type]

    with pytest.raises(TokenmillError, match="lacks propose"):
        load(Plugin(), speculative_method="empty")
