"""No body holds up the event loop of a server whose engine is in a process of its own."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from tests.api.images.large_bodies import large_bodies
from tests.api.serving import serve_engine
from tests.api.test_loop_time import LONGEST, longest_callbacks, longest_of
from tests.api.toy_process import toy_process
from tests.oracle.tiny_smolvlm import picture, write_model
from tokenmill.assembly import build_supervised_engine
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress

SIDE = 512
"""Side of a tile of SmolVLM-256M, in pixels. A large image has 13 MB of pixels."""


def test_no_large_body_holds_up_the_event_loop() -> None:
    with serve_engine(toy_process()) as served:
        found = longest_callbacks(served, every=1)
    assert {name: seconds for name, seconds in found.items() if seconds > LONGEST} == {}


def test_no_large_body_with_images_does_either(tmp_path: Path) -> None:
    """8 photos have 100 MB of pixels, which the server sends to the engine's process."""
    config = EngineConfig.from_options(
        model=str(write_model(tmp_path, tile=SIDE)),
        served_model_name="tiny",
        dtype="float32",
        num_gpu_blocks_override=256,
        disable_log_stats=True,
    )
    photos = []
    for seed in range(8):
        file = BytesIO()
        picture(seed, 96, 96).resize((1024, 1024)).save(file, "JPEG")
        photos.append(file.getvalue())
    with serve_engine(build_supervised_engine(config, no_progress)) as served:
        found = longest_of(served, large_bodies(photos), {})
    assert {name: seconds for name, seconds in found.items() if seconds > LONGEST} == {}
