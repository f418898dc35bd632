"""The programs of the page on images run as they are, with a tiny model."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from tests.api.serving import serve_engine
from tests.oracle.tiny_smolvlm import picture, write_model
from tokenmill.api.cli import make_parser
from tokenmill.assembly import AsyncEngine
from tokenmill.core.config import EngineConfig

from .pages import ROOT

PAGE = (ROOT / "docs/serving/images.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.DOTALL)
FLAGS = re.findall(r"^\| `(--[^`]+)` \|", PAGE, re.M)
MODEL, URL = "HuggingFaceTB/SmolVLM-256M-Instruct", "http://127.0.0.1:8000"


@pytest.fixture
def model(own_folder: Path) -> Path:
    """The current folder has the photo of the page."""
    picture(0, 30, 20).save(own_folder / "photo.jpg")
    return write_model(own_folder / "model")


def test_the_program_of_a_client_gets_an_answer(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (code for code in PROGRAMS if URL in code)
    engine = AsyncEngine(str(model), num_gpu_blocks_override=64, disable_log_stats=True)
    with serve_engine(engine) as served:
        exec(program.replace(URL, served.url), {})
    assert capsys.readouterr().out.strip()


def test_the_other_programs_print_answers(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs = [code for code in PROGRAMS if MODEL in code]
    assert len(programs) == 2
    for program in programs:
        exec(program.replace(MODEL, str(model)), {})
        assert capsys.readouterr().out.strip()


def test_the_flags_are_taken_as_they_are() -> None:
    assert len(FLAGS) > 5
    known = {field.name for field in dataclasses.fields(EngineConfig)}
    for flag in FLAGS:
        words = shlex.split(flag.replace("FOLDER", str(ROOT)))
        args = make_parser().parse_args(["serve", *words])
        name = words[0].removeprefix("--").replace("-", "_")
        if name in known:
            EngineConfig.from_options(**{name: getattr(args, name)})
