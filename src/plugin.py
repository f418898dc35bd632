"""Public interface for policy plugins: hooks, views, events and the registry. It imports no torch.

Plugins that compute with tensors also use `tokenmill.compute`.
"""

from __future__ import annotations

from .core.contract.client import EngineClient, Load
from .core.contract.draft_length import DraftedStep, DraftLengthPolicy, DraftOutcome
from .core.contract.events import (
    Admitted,
    Finished,
    FinishedRequest,
    Planned,
    PluginFailed,
    Preempted,
    Started,
    StepDone,
    Stopping,
)
from .core.contract.fallback import decode_first, last_come
from .core.contract.hookspecs import HOOK_API, hookimpl
from .core.contract.policy import (
    PreemptionCandidate,
    Refusal,
    RequestView,
    SchedulingPolicy,
    StepView,
    Victim,
)
from .core.contract.registry import PluginContext, Registry
from .core.contract.speculation import (
    Draft,
    DraftModel,
    ProposalBatch,
    ProposalRequest,
    SpeculationLimits,
    SpeculationSupport,
    Speculator,
)
from .core.errors import ConfigError, PluginError
from .core.interfaces import Tokenizer
from .core.log import get_logger
from .core.outputs import FinishReason

__all__ = [
    "HOOK_API",
    "Admitted",
    "ConfigError",
    "Draft",
    "DraftLengthPolicy",
    "DraftModel",
    "DraftOutcome",
    "DraftedStep",
    "EngineClient",
    "FinishReason",
    "Finished",
    "FinishedRequest",
    "Load",
    "Planned",
    "PluginContext",
    "PluginError",
    "PluginFailed",
    "Preempted",
    "PreemptionCandidate",
    "ProposalBatch",
    "ProposalRequest",
    "Refusal",
    "Registry",
    "RequestView",
    "SchedulingPolicy",
    "SpeculationLimits",
    "SpeculationSupport",
    "Speculator",
    "Started",
    "StepDone",
    "StepView",
    "Stopping",
    "Tokenizer",
    "Victim",
    "decode_first",
    "get_logger",
    "hookimpl",
    "last_come",
]
