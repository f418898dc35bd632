"""A server returns memory that it has freed, as long as it serves."""

from __future__ import annotations

import threading

import pytest

from tokenmill.core.processes import free_memory

from .serving import PATIENCE, serve_engine, toy_engine


def test_freed_memory_is_returned_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    is_repeated = threading.Event()

    def note() -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == 3:
            is_repeated.set()

    monkeypatch.setattr(free_memory, "RETURN_SECONDS", 0.01)
    monkeypatch.setattr(free_memory, "return_free_memory", note)
    with serve_engine(toy_engine()) as served:
        assert is_repeated.wait(PATIENCE)
        with served.client() as client:
            assert client.get("/health").status_code == 200
    assert "served" not in threads, "the event loop waited"
