"""The event loop never works long for a body of 20 MiB with images."""

from __future__ import annotations

from tests.api.serving import Served
from tests.api.test_loop_time import LONGEST, longest_of
from tests.oracle.tiny_smolvlm import png

from .calls import ONE, TWO
from .conftest import KEYS
from .large_bodies import large_bodies


def test_large_images_do_not_hold_up_the_event_loop(vision: Served) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    found = longest_of(vision, large_bodies([png(ONE), png(TWO)], every=4), headers)
    assert {name: seconds for name, seconds in found.items() if seconds > LONGEST} == {}
