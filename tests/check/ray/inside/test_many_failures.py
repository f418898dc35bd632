"""Twenty failures in a row of Ray workers on two machines, with open requests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.test_worker_restarts import Record, lose_workers

from .test_failures import workers


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_lost_stages_in_a_row_end_every_request_and_leave_nothing(
    model: Path, tmp_path: Path, record_property: Record
) -> None:
    flags = ["--model", str(model), "--device", "cpu", "--distributed-executor-backend", "ray"]
    flags += ["--pipeline-parallel-size", "2"]
    faults = (signal.SIGKILL, signal.SIGSTOP)
    lose_workers(
        tmp_path, record_property, *flags, workers_of=lambda server: workers(), faults=faults
    )
