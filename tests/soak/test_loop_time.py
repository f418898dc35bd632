"""No body holds up the event loop of a server whose engine is in a process of its own."""

from __future__ import annotations

from tests.api.serving import serve_engine
from tests.api.test_loop_time import LONGEST, longest_callbacks
from tests.api.toy_process import toy_process


def test_no_large_body_holds_up_the_event_loop() -> None:
    with serve_engine(toy_process()) as served:
        found = longest_callbacks(served, every=1)
    assert {name: seconds for name, seconds in found.items() if seconds > LONGEST} == {}
