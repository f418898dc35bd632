"""The conformance kit: what the engine expects of a plugin, one pytest class per kind.

Without code: `tokenmill plugins check NAME`. In a plugin's own tests: subclass with one fixture.
"""

from __future__ import annotations

from .admission import AdmissionConformance
from .attention.suite import AttentionConformance
from .draft_length import DraftLengthConformance
from .observer import ObserverConformance
from .package import PackageConformance
from .preemption import PreemptionConformance
from .scheduler import SchedulerConformance
from .scheduling_policy import SchedulingPolicyConformance
from .speculator import SpeculatorConformance

__all__ = [
    "AdmissionConformance",
    "AttentionConformance",
    "DraftLengthConformance",
    "ObserverConformance",
    "PackageConformance",
    "PreemptionConformance",
    "SchedulerConformance",
    "SchedulingPolicyConformance",
    "SpeculatorConformance",
]
