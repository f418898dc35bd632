"""Public interface for policy plugins: hooks, views, events and the registry. It imports no torch.

Plugins that compute with tensors also use `tokenmill.compute`.
"""

from __future__ import annotations

from .core import kinds
from .core.contract.client import EngineClient, Load
from .core.contract.events import (
    Admitted,
    Finished,
    FinishedRequest,
    Planned,
    PluginFailed,
    Preempted,
    PrefixCacheChanged,
    Refused,
    RemovedBlock,
    Started,
    StepDone,
    Stopping,
    StoredBlock,
)
from .core.contract.hookspecs import HOOK_API, hookimpl
from .core.contract.metrics import PluginMetrics
from .core.contract.parsing.answer_parsers import Parsing, ReasoningParser, ToolCallParser
from .core.contract.parsing.answer_text import (
    AnswerText,
    BracketScanner,
    content_before,
    find,
    rest_as_content,
    skip_space,
    take_end,
    take_next,
)
from .core.contract.parsing.answers import (
    CallSyntax,
    ContentDelta,
    Delta,
    ParsedAnswer,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolDefinition,
    collect,
)
from .core.contract.parsing.argument_values import argument_value
from .core.contract.parsing.enclosed_calls import enclosed_calls
from .core.contract.parsing.json_calls import json_arguments, json_call, whole_call
from .core.contract.policy import (
    PreemptionCandidate,
    Refusal,
    RequestView,
    SchedulingPolicy,
    StepView,
    Victim,
)
from .core.contract.providers.draft_length import DraftedStep, DraftLengthPolicy, DraftOutcome
from .core.contract.providers.http_routes import (
    ChatAnswer,
    ChatEnd,
    Route,
    RouteAnswer,
    RouteCall,
    RouteChat,
    Routes,
    RouteStream,
    ServedModel,
)
from .core.contract.providers.routing import ReplicaView, RoutedRequest, Router, least_loaded
from .core.contract.providers.speculation import (
    Draft,
    DraftModel,
    ProposalBatch,
    ProposalRequest,
    SpeculationLimits,
    SpeculationSupport,
    Speculator,
)
from .core.contract.providers.transforming import (
    AnswerTransform,
    RequestText,
    Transform,
    Transformed,
)
from .core.contract.registry import PluginContext, Registry, Replica
from .core.errors import ConfigError, InvalidRequestError, PluginError
from .core.interfaces import ChatFormat, ModelInfo, Tokenizer
from .core.log import get_logger
from .core.outputs import FinishReason
from .core.rate_bucket import RateBucket
from .core.requests.grammar import Grammar
from .core.requests.request_options import RequestOptions

__all__ = [
    "HOOK_API",
    "Admitted",
    "AnswerText",
    "AnswerTransform",
    "BracketScanner",
    "CallSyntax",
    "ChatAnswer",
    "ChatEnd",
    "ChatFormat",
    "ConfigError",
    "ContentDelta",
    "Delta",
    "Draft",
    "DraftLengthPolicy",
    "DraftModel",
    "DraftOutcome",
    "DraftedStep",
    "EngineClient",
    "FinishReason",
    "Finished",
    "FinishedRequest",
    "Grammar",
    "InvalidRequestError",
    "Load",
    "ModelInfo",
    "ParsedAnswer",
    "Parsing",
    "Planned",
    "PluginContext",
    "PluginError",
    "PluginFailed",
    "PluginMetrics",
    "Preempted",
    "PreemptionCandidate",
    "PrefixCacheChanged",
    "ProposalBatch",
    "ProposalRequest",
    "RateBucket",
    "ReasoningDelta",
    "ReasoningParser",
    "Refusal",
    "Refused",
    "Registry",
    "RemovedBlock",
    "Replica",
    "ReplicaView",
    "RequestOptions",
    "RequestText",
    "RequestView",
    "Route",
    "RouteAnswer",
    "RouteCall",
    "RouteChat",
    "RouteStream",
    "RoutedRequest",
    "Router",
    "Routes",
    "SchedulingPolicy",
    "ServedModel",
    "SpeculationLimits",
    "SpeculationSupport",
    "Speculator",
    "Started",
    "StepDone",
    "StepView",
    "Stopping",
    "StoredBlock",
    "Tokenizer",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallParser",
    "ToolDefinition",
    "Transform",
    "Transformed",
    "Victim",
    "argument_value",
    "collect",
    "content_before",
    "enclosed_calls",
    "find",
    "get_logger",
    "hookimpl",
    "json_arguments",
    "json_call",
    "kinds",
    "least_loaded",
    "rest_as_content",
    "skip_space",
    "take_end",
    "take_next",
    "whole_call",
]
