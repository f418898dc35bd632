"""What is measured of a start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill.bench.one_start import IMPORTS, OTHER, PROCESS, Phases, Start
from tokenmill.bench.starts import start_fields, warm_start
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError


def test_the_phases_of_a_start_add_up_to_it(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", TARGET, 0)
    start = warm_start(EngineConfig(model=str(model), num_gpu_blocks_override=32))
    assert sum(start.phases.values()) == pytest.approx(start.total)
    assert list(start.phases)[:2] == [PROCESS, IMPORTS] and list(start.phases)[-1] == OTHER
    assert start.phases["loading weights"] > 0


def test_a_start_that_fails_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the start failed: no model at .*nowhere"):
        warm_start(EngineConfig(model=str(tmp_path / "nowhere")))


def test_a_stage_within_another_one_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 2.0, 4.0, 8.0, 9.0])
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr("tokenmill.bench.one_start.time", clock)
    phases = Phases()
    for stage, fraction in (("outer", 0.0), ("inner", 0.0), ("inner", 1.0), ("outer", 1.0)):
        phases.note(stage, fraction)
    phases.note("outer", 1.0)
    assert phases.seconds == {"outer": 7.0}


def test_the_fields_are_those_of_vllm() -> None:
    starts = [
        Start(total=total, phases={"compiling kernels": 1.0, "loading weights": 0.5})
        for total in (2.0, 4.0)
    ]
    fields = start_fields("cold", starts)
    assert fields["avg_cold_startup_time"] == 3.0 and fields["cold_startup_times"] == [2.0, 4.0]
    assert fields["cold_startup_percentiles"]["50"] == 3.0
    assert fields["avg_cold_compilation_time"] == 1.0
    assert fields["cold_phases"]["loading weights"] == [0.5, 0.5]
