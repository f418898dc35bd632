"""The conformance suites: tests of what the engine expects from a plugin, one class per kind.

`tokenmill plugins check NAME` runs them without any code. A plugin's own tests subclass them and
define one fixture.
"""

from __future__ import annotations

from .admission import AdmissionConformance
from .attention.suite import AttentionConformance
from .draft_length import DraftLengthConformance
from .grammar.suite import GrammarConformance
from .linear.suite import LinearConformance
from .logits.suite import LogitsProcessorConformance
from .model.suite import ModelImplConformance
from .observer import ObserverConformance
from .package import PackageConformance
from .parsers.suite import ReasoningParserConformance, ToolCallParserConformance
from .preemption import PreemptionConformance
from .scheduler import SchedulerConformance
from .scheduling_policy import SchedulingPolicyConformance
from .speculator import SpeculatorConformance
from .weight_format.suite import WeightFormatConformance

__all__ = [
    "AdmissionConformance",
    "AttentionConformance",
    "DraftLengthConformance",
    "GrammarConformance",
    "LinearConformance",
    "LogitsProcessorConformance",
    "ModelImplConformance",
    "ObserverConformance",
    "PackageConformance",
    "PreemptionConformance",
    "ReasoningParserConformance",
    "SchedulerConformance",
    "SchedulingPolicyConformance",
    "SpeculatorConformance",
    "ToolCallParserConformance",
    "WeightFormatConformance",
]
