"""The conformance suites: tests of what the engine expects from a plugin, one class per kind.

`tokenmill plugins check NAME` runs them without any code. A plugin's own tests subclass them and
define one fixture.
"""

from __future__ import annotations

from .attention.suite import AttentionConformance
from .executor.suite import ExecutorConformance
from .grammar.suite import GrammarConformance
from .linear.suite import LinearConformance
from .logits.suite import LogitsProcessorConformance
from .model.suite import ModelImplConformance
from .package import PackageConformance
from .parsers.suite import ReasoningParserConformance, ToolCallParserConformance
from .policies.admission import AdmissionConformance
from .policies.draft_length import DraftLengthConformance
from .policies.observer import ObserverConformance
from .policies.preemption import PreemptionConformance
from .policies.router import RouterConformance
from .policies.scheduler import SchedulerConformance
from .policies.scheduling_policy import SchedulingPolicyConformance
from .policies.speculator import SpeculatorConformance
from .weight_format.suite import WeightFormatConformance

__all__ = [
    "AdmissionConformance",
    "AttentionConformance",
    "DraftLengthConformance",
    "ExecutorConformance",
    "GrammarConformance",
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
    "SpeculatorConformance",
    "ToolCallParserConformance",
    "WeightFormatConformance",
]
