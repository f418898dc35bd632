"""Builds the chosen parsers of answers. The API does this, in its own process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.parsing.answer_parsers import ReasoningParser, ToolCallParser
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
    reasoning: ReasoningParser | None = None


def build_answer_parsers(config: EngineConfig, chat: ChatFormat | None) -> AnswerParsers:
    """The parsers that flags or plugins.toml choose, or that fit the chat template.

    Raises PluginError with a one-line message.
    """
    if chat is None:
        return AnswerParsers()
    plugins = PluginSet(read_settings(config.plugins_file))
    plugins.load_enabled()
    return AnswerParsers(
        tools=_build("tool_call_parser", config, plugins, chat),
        reasoning=_build("reasoning_parser", config, plugins, chat),
    )


def _build(slot: str, config: EngineConfig, plugins: PluginSet, chat: ChatFormat) -> Any:
    parser = _choose(slot, config, plugins, chat)
    return parser if getattr(parser, "parses", True) else None


def _choose(slot: str, config: EngineConfig, plugins: PluginSet, chat: ChatFormat) -> Any:
    choice = choose_slot(slot, config, plugins)
    if not choice.others:
        return _make(choice, choice.name, plugins.registry)
    if choice.options:
        raise PluginError(f"{choice.origin}: options need a parser in `use`, not 'auto'")
    passed_over: list[str] = []
    for provider in (choice.provider, *choice.others):
        parser = _make(choice, provider.name, plugins.registry)
        reasons = parser.reasons_against(chat)
        if not reasons:
            _log.info(f"{slot}_chosen", parser=provider.name, passed_over=passed_over)
            return parser
        passed_over += [f"{provider.name}: {reason}" for reason in reasons]
    return None


def _make(choice: Choice, name: str, registry: Registry) -> Any:
    return registry.build(choice.provider.kind, name, choice.options, where=choice.origin)
