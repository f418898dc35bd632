"""Builds the chosen parsers of answers. The API does this, in its own process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...core.config import EngineConfig
from ...core.contract.choice import Choice
from ...core.contract.parsing.answer_parsers import ReasoningParser, ToolCallParser
from ...core.contract.parsing.answers import CallSyntax
from ...core.contract.registry import Provider, Registry, label
from ...core.contract.start_calls import START_CALLS
from ...core.errors import CONTAINED, PluginError
from ...core.host.calling.guard import Guard
from ...core.host.choice import choose_slot
from ...core.host.plugin_set import PluginSet, enabled_plugins
from ...core.interfaces import ChatFormat
from ...core.log import get_logger
from ...core.members import DESCRIBES_TOOLS, PARSES
from .parser_guards import ParserGuards
from .transforms import build_transforms

_log = get_logger("plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParsers:
    """The parsers of one server; None where the chosen one is "none", or there are no chats."""

    tools: ToolCallParser | None = None
    demanded: ToolCallParser | None = None
    """Reads calls that `tool_choice` demands. It has a syntax; None: no enabled parser has one."""
    reasoning: ReasoningParser | None = None
    transforms: tuple[Guard, ...] = ()
    """The transforms of requests and answers, in order."""
    guards: ParserGuards = field(default_factory=ParserGuards)
    """Count the calls of these parsers."""

    @property
    def syntax(self) -> CallSyntax | None:
        """The syntax in which the model is asked, or forced, to write calls."""
        return self.demanded.call_syntax if self.demanded is not None else None


def build_answer_parsers(
    config: EngineConfig, chat: ChatFormat | None, guards: ParserGuards | None = None
) -> AnswerParsers:
    """The parsers that flags or plugins.toml choose, or that fit the chat template. `guards`
    already count other plugins of the server.

    Raises PluginError with a one-line message.
    """
    plugins = enabled_plugins(config)
    guards = guards or ParserGuards()
    transforms = build_transforms(plugins, guards)
    if chat is None:
        return AnswerParsers(transforms=transforms, guards=guards)
    tools = guards.watch(*_choose("tool_call_parser", config, plugins, chat))
    has_syntax = tools is not None and tools.call_syntax is not None
    return AnswerParsers(
        tools=tools,
        demanded=tools if has_syntax else guards.watch(*_describing(plugins.registry)),
        reasoning=guards.watch(*_choose("reasoning_parser", config, plugins, chat)),
        transforms=transforms,
        guards=guards,
    )


def _describing(registry: Registry) -> tuple[Any, Provider | None]:
    """The first parser whose calls every model can be asked for."""
    for provider in registry.providers("tool_call_parser"):
        parser = registry.build(provider.kind, provider.name)
        if DESCRIBES_TOOLS.of(parser):
            return parser, provider
    return None, None


def _choose(
    slot: str, config: EngineConfig, plugins: PluginSet, chat: ChatFormat
) -> tuple[Any, Provider | None]:
    """The parser of a slot and its provider; (None, None) if it is "none" or none fits."""
    choice = choose_slot(slot, config, plugins)
    if not choice.others:
        return _parsing(_make(choice, choice.provider, plugins.registry), choice.provider)
    if choice.options:
        raise PluginError(f"{choice.origin}: options need a parser in `use`, not 'auto'")
    passed_over: list[str] = []
    providers = (choice.provider, *choice.others)
    parsers = [(_make(choice, one, plugins.registry), one) for one in providers]
    for parser, provider in sorted(parsers, key=lambda found: _generality(found[0])):
        reasons = _reasons_against(parser, provider, chat)
        if not reasons:
            _log.debug(f"{slot}_chosen", parser=provider.name, passed_over=passed_over)
            return _parsing(parser, provider)
        passed_over += [f"{provider.name}: {reason}" for reason in reasons]
    return None, None


def _reasons_against(parser: Any, provider: Provider, chat: ChatFormat) -> list[str]:
    what = f"in 'reasons_against' of {label(provider.kind)} {provider.name!r} of"
    try:
        return list(START_CALLS.call(what, provider.source, parser.reasons_against, chat))
    except CONTAINED as error:
        raise PluginError(
            f"{provider.source} failed in 'reasons_against': {type(error).__name__}: {error}"
        ) from error


def _parsing(parser: Any, provider: Provider) -> tuple[Any, Provider | None]:
    return (parser, provider) if PARSES.of(parser) else (None, None)


def _generality(parser: Any) -> int:
    """Parsers that fit every model come last, even after parsers of later plugins."""
    return int(DESCRIBES_TOOLS.of(parser)) if PARSES.of(parser) else 2


def _make(choice: Choice, provider: Provider, registry: Registry) -> Any:
    return registry.build(provider.kind, provider.name, choice.options, where=choice.origin)
