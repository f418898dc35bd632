"""Which linear backend computes, which formats it keeps, and why others were passed over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tokenmill.backends.linear.base import LinearCapabilities, LinearSpec
from tokenmill.backends.linear.choice import (
    AutoLinear,
    choose_linear_backend,
    packed_bytes,
    reasons_against,
)
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.packed import WeightFormat
from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.listing import discover_plugins
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress

from ...core.plugin_packages import Packages

SPEC = LinearSpec(dtype=torch.bfloat16, device=torch.device("cpu"))
FLOAT32 = LinearSpec(dtype=torch.float32, device=torch.device("cpu"))
Q4_0, Q8_0 = GGUFBlocks(Kind.Q4_0), GGUFBlocks(Kind.Q8_0)
OWN = [
    info.name
    for info in discover_plugins()
    if any(provided.startswith("linear_backend:") for provided in info.provides)
]
SETTINGS = f"[plugins]\ndisable = {OWN}\n[linear_backend]\nuse = 'auto'\n"


class Small:
    """A backend for bfloat16 that keeps one format, in another size than in the file."""

    name = "small"
    capabilities = LinearCapabilities(measures=True)

    def __init__(self, spec: LinearSpec) -> None: ...

    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        return [] if spec.dtype is torch.bfloat16 else ["no bfloat16"]

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return format == Q4_0

    @classmethod
    def packed_bytes(
        cls, spec: LinearSpec, format: WeightFormat, num_rows: int, num_inputs: int
    ) -> int:
        return 1000 * num_rows + num_inputs


class Large(Small):
    """A backend for everything, that keeps another format."""

    name = "large"

    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        return []

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return format == Q8_0


class Unbuilt(Small):
    """A backend whose library cannot be built."""

    capabilities = LinearCapabilities(builds=True)

    @classmethod
    def build(cls, spec: LinearSpec, progress: Any) -> None:
        progress("building", 0.0)
        raise BuildError("no compiler")

    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        return ["it has no library: no compiler"]


class Offers:
    """A plugin with both backends."""

    TOKENMILL_API = (1, 1)

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.LINEAR_BACKEND, "small", lambda: Small)
        registry.offer(kinds.LINEAR_BACKEND, "large", lambda: Large)


@pytest.fixture
def auto(packages: Packages) -> AutoLinear:
    packages.write_settings(SETTINGS)
    chosen = choose_linear_backend(PluginHost.load(EngineConfig(), extra=[Offers()]))
    assert isinstance(chosen, AutoLinear)
    return chosen


def test_auto_is_the_first_backend_that_serves(auto: AutoLinear) -> None:
    assert auto.reasons_against(SPEC) == auto.reasons_against(FLOAT32) == []
    assert type(auto(SPEC)) is Small
    assert type(auto(FLOAT32)) is Large


def test_auto_reports_why_each_backend_was_passed_over(
    auto: AutoLinear, caplog: pytest.LogCaptureFixture
) -> None:
    assert auto.judge_all(FLOAT32) == {"small": ["no bfloat16"], "large": []}
    with caplog.at_level("DEBUG"):
        auto(FLOAT32)
    (record,) = [one for one in caplog.records if one.message == "linear_backend_chosen"]
    assert vars(record)["backend"] == "large"
    assert vars(record)["passed_over"] == ["small: no bfloat16"]


def test_auto_keeps_the_formats_of_the_backend_that_serves_the_specification(
    auto: AutoLinear,
) -> None:
    assert auto.keeps(SPEC, Q4_0) and not auto.keeps(SPEC, Q8_0)
    assert auto.keeps(FLOAT32, Q8_0) and not auto.keeps(FLOAT32, Q4_0)


def test_auto_states_the_memory_of_the_backend_that_serves_the_specification(
    auto: AutoLinear,
) -> None:
    assert packed_bytes(auto, SPEC, Q4_0, 3, 64) == 3064
    assert packed_bytes(TorchLinear, SPEC, Q4_0, 3, 64) is None  # as much as in the file


def test_without_a_backend_that_serves_nothing_is_kept(packages: Packages) -> None:
    class Only:
        TOKENMILL_API = (1, 1)

        @hookimpl
        def register(self, registry: Registry) -> None:
            registry.offer(kinds.LINEAR_BACKEND, "small", lambda: Small)
            registry.offer(kinds.LINEAR_BACKEND, "unbuilt", lambda: Unbuilt)

    packages.write_settings(SETTINGS)
    auto = choose_linear_backend(PluginHost.load(EngineConfig(), extra=[Only()]))
    assert auto.reasons_against(FLOAT32) == [
        "small: no bfloat16",
        "unbuilt: it has no library: no compiler",
    ]
    assert not auto.keeps(FLOAT32, Q4_0)
    assert packed_bytes(auto, FLOAT32, Q4_0, 3, 64) is None


def test_a_backend_is_built_before_it_is_judged_and_says_itself_why_that_failed() -> None:
    steps: list[str] = []
    reasons = reasons_against(Unbuilt, SPEC, lambda stage, fraction: steps.append(stage))
    assert steps == ["building"]
    assert reasons == ["it has no library: no compiler"]
    assert reasons_against(TorchLinear, SPEC, no_progress) == []


def test_a_named_backend_is_its_class_and_an_unknown_name_is_refused(own_folder: object) -> None:
    assert chosen("torch") is TorchLinear
    with pytest.raises(ConfigError) as caught:
        chosen("torhc")
    message = str(caught.value)
    assert message.isprintable() and "torhc" in message and "'torch'" in message


def chosen(name: str) -> Any:
    return choose_linear_backend(PluginHost.load(EngineConfig(linear_backend=name)))
