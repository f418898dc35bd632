"""Tools for plugin authors: the conformance kit, and an engine that needs no model.

Names are imported on first use, because the kit needs pytest and the rest does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformance import (
        AdmissionConformance,
        AttentionConformance,
        DraftLengthConformance,
        ExecutorConformance,
        GrammarConformance,
        LinearConformance,
        LogitsProcessorConformance,
        ModelImplConformance,
        ObserverConformance,
        PackageConformance,
        PreemptionConformance,
        ReasoningParserConformance,
        RouterConformance,
        SchedulerConformance,
        SchedulingPolicyConformance,
        SpeculatorConformance,
        ToolCallParserConformance,
        WeightFormatConformance,
    )
    from .conformance.engine.bench import EngineBench
    from .conformance.engine.workload import EngineShape, Job
    from .simulated.executor import SimulatedExecutor, expected_tokens
    from .toy_tokenizer import ToyTokenizer

__all__ = [
    "AdmissionConformance",
    "AttentionConformance",
    "DraftLengthConformance",
    "EngineBench",
    "EngineShape",
    "ExecutorConformance",
    "GrammarConformance",
    "Job",
    "LinearConformance",
    "LogitsProcessorConformance",
    "ModelImplConformance",
    "ObserverConformance",
    "PackageConformance",
    "PreemptionConformance",
    "ReasoningParserConformance",
    "RouterConformance",
    "SchedulerConformance",
    "SchedulingPolicyConformance",
    "SimulatedExecutor",
    "SpeculatorConformance",
    "ToolCallParserConformance",
    "ToyTokenizer",
    "WeightFormatConformance",
    "expected_tokens",
]

_MODULES = {
    "EngineBench": "conformance.engine.bench",
    "EngineShape": "conformance.engine.workload",
    "Job": "conformance.engine.workload",
    "SimulatedExecutor": "simulated.executor",
    "ToyTokenizer": "toy_tokenizer",
    "expected_tokens": "simulated.executor",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'conformance')}"), name)
