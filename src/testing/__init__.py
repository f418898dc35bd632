"""Tools for plugin authors: the conformance kit, and an engine that needs no model.

Names are imported on first use, because the kit needs pytest and the rest does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.kinds import KINDS

if TYPE_CHECKING:
    from .conformance.attention.suite import AttentionConformance as AttentionConformance
    from .conformance.computing.grammar import GrammarConformance as GrammarConformance
    from .conformance.computing.logits import (
        LogitsProcessorConformance as LogitsProcessorConformance,
    )
    from .conformance.computing.media import MediaProcessorConformance as MediaProcessorConformance
    from .conformance.computing.model import ModelImplConformance as ModelImplConformance
    from .conformance.computing.weight_format import (
        WeightFormatConformance as WeightFormatConformance,
    )
    from .conformance.engine.bench import EngineBench as EngineBench
    from .conformance.engine.workload import EngineShape as EngineShape
    from .conformance.engine.workload import Job as Job
    from .conformance.executor.suite import ExecutorConformance as ExecutorConformance
    from .conformance.http_routes.suite import RouteConformance as RouteConformance
    from .conformance.linear.suite import LinearConformance as LinearConformance
    from .conformance.package import PackageConformance as PackageConformance
    from .conformance.parsers.reasoning import (
        ReasoningParserConformance as ReasoningParserConformance,
    )
    from .conformance.parsers.tool_calls import (
        ToolCallParserConformance as ToolCallParserConformance,
    )
    from .conformance.policies.admission import AdmissionConformance as AdmissionConformance
    from .conformance.policies.draft_length import DraftLengthConformance as DraftLengthConformance
    from .conformance.policies.observer import ObserverConformance as ObserverConformance
    from .conformance.policies.preemption import PreemptionConformance as PreemptionConformance
    from .conformance.policies.router import RouterConformance as RouterConformance
    from .conformance.policies.scheduler import SchedulerConformance as SchedulerConformance
    from .conformance.policies.scheduling_policy import (
        SchedulingPolicyConformance as SchedulingPolicyConformance,
    )
    from .conformance.policies.speculator import SpeculatorConformance as SpeculatorConformance
    from .conformance.transforms import TransformConformance as TransformConformance
    from .simulated.executor import SimulatedExecutor as SimulatedExecutor
    from .simulated.executor import expected_tokens as expected_tokens
    from .toy_tokenizer import ToyTokenizer as ToyTokenizer

_MODULES = {
    "EngineBench": "conformance.engine.bench",
    "EngineShape": "conformance.engine.workload",
    "Job": "conformance.engine.workload",
    "PackageConformance": "conformance.package",
    "SimulatedExecutor": "simulated.executor",
    "ToyTokenizer": "toy_tokenizer",
    "expected_tokens": "simulated.executor",
}
for _kind in KINDS.values():
    _module, _, _suite = _kind.suite.partition(":")
    _MODULES[_suite] = f"conformance.{_module}"

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
