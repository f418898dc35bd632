"""The example policy of examples/plugin-fair-queueing over HTTP: tenants by an allowed header."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tokenmill.core.contract.events import Finished
from tokenmill.core.contract.hookspecs import hookimpl

from .serving import SteeredExecutor, serve_engine, toy_engine

PACKAGE = Path(__file__).resolve().parents[2] / "examples/plugin-fair-queueing"


@pytest.fixture
def fair_queueing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield importlib.import_module("tokenmill_fair_queueing")
    for name in [name for name in sys.modules if name.startswith("tokenmill_fair_queueing")]:
        del sys.modules[name]


class Order:
    """Tenants of requests in the order in which these ended."""

    def __init__(self) -> None:
        self.tenants: list[str] = []

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        self.tenants += [request.options.metadata["x-tenant"] for request in event.requests]


@pytest.mark.parametrize(
    ("policy", "expected"), [("fcfs", "zaaaabb"), ("fair-queueing", "zababaa")]
)
def test_a_tenant_that_sends_more_delays_its_own_requests_only(
    fair_queueing: ModuleType, policy: str, expected: str
) -> None:
    executor, order = SteeredExecutor(), Order()
    executor.gate.clear()
    engine = toy_engine(
        executor, extra=[fair_queueing, order], max_num_seqs=1, scheduling_policy=policy
    )
    with serve_engine(engine, metadata_headers=("X-Tenant",)) as served:

        def ask(tenant: str) -> None:
            with served.client(headers={"X-Tenant": tenant}) as http:
                answer = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3})
                assert answer.status_code == 200

        threads = [threading.Thread(target=ask, args=(tenant,)) for tenant in "zaaaabb"]
        try:
            for number, thread in enumerate(threads, start=1):
                thread.start()
                served.wait_until(
                    lambda load, n=number: load["num_running"] + load["num_waiting"] == n
                )
        finally:
            executor.gate.set()
            for thread in threads:
                thread.join()
    assert "".join(order.tenants) == expected
