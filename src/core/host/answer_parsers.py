"""Builds the chosen parsers of answers. The API does this, in its own process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.parsing.answer_parsers import ReasoningParser, ToolCallParser
from ..contract.parsing.answers import CallSyntax
from ..contract.registry import Registry
from ..errors import PluginError
from ..interfaces import ChatFormat
from ..log import get_logger
from .choice import choose_slot
from .plugin_set import PluginSet
from .plugins_file import read_settings

_log = get_logger("plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParsers:
    """The parsers of one server; None where the chosen one is "none", or there are no chats."""

    tools: ToolCallParser | None = None
    demanded: ToolCallParser | None = None
    """Reads calls that `tool_choice` demands. It has a syntax; None: no enabled parser has one."""
    reasoning: ReasoningParser | None = None

    @property
    def syntax(self) -> CallSyntax | None:
        """The syntax in which the model is asked, or forced, to write calls."""
        return self.demanded.call_syntax if self.demanded is not None else None


def build_answer_parsers(config: EngineConfig, chat: ChatFormat | None) -> AnswerParsers:
    """The parsers that flags or plugins.toml choose, or that fit the chat template.

    Raises PluginError with a one-line message.
    """
    if chat is None:
        return AnswerParsers()
    plugins = PluginSet(read_settings(config.plugins_file))
    plugins.load_enabled()
    tools: ToolCallParser | None = _build("tool_call_parser", config, plugins, chat)
    has_syntax = tools is not None and tools.call_syntax is not None
    return AnswerParsers(
        tools=tools,
        demanded=tools if has_syntax else _describing(plugins.registry),
        reasoning=_build("reasoning_parser", config, plugins, chat),
    )


def _build(slot: str, config: EngineConfig, plugins: PluginSet, chat: ChatFormat) -> Any:
    parser = _choose(slot, config, plugins, chat)
    return parser if getattr(parser, "parses", True) else None


def _describing(registry: Registry) -> ToolCallParser | None:
    """The first parser whose calls every model can be asked for."""
    for provider in registry.providers("tool_call_parser"):
        parser: ToolCallParser = registry.build(provider.kind, provider.name)
        if getattr(parser, "describes_tools", False):
            return parser
    return None


def _choose(slot: str, config: EngineConfig, plugins: PluginSet, chat: ChatFormat) -> Any:
    choice = choose_slot(slot, config, plugins)
    if not choice.others:
        return _make(choice, choice.name, plugins.registry)
    if choice.options:
        raise PluginError(f"{choice.origin}: options need a parser in `use`, not 'auto'")
    passed_over: list[str] = []
    names = [provider.name for provider in (choice.provider, *choice.others)]
    parsers = [(name, _make(choice, name, plugins.registry)) for name in names]
    for name, parser in sorted(parsers, key=lambda found: _generality(found[1])):
        reasons = parser.reasons_against(chat)
        if not reasons:
            _log.info(f"{slot}_chosen", parser=name, passed_over=passed_over)
            return parser
        passed_over += [f"{name}: {reason}" for reason in reasons]
    return None


def _generality(parser: Any) -> int:
    """Parsers that fit every model come last, also after those of later plugins."""
    is_none = not getattr(parser, "parses", True)
    return 2 if is_none else int(getattr(parser, "describes_tools", False))


def _make(choice: Choice, name: str, registry: Registry) -> Any:
    return registry.build(choice.provider.kind, name, choice.options, where=choice.origin)
