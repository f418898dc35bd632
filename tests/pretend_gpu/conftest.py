"""Lets worker processes have a pretend GPU: Python runs sitecustomize.py at its start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.compiling import compile_once
from tokenmill.backends.cpu.native.build import find_compiler
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.backends.machine.places import GPUS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="module")
def gpus(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Four GPUs that this process sees, and of which each worker process has one to compute on."""
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    flags = [f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}"]
    command = [compiler, "-std=c++20", "-shared", "-fPIC", *flags, "-Wl,--no-as-needed", "-lc10"]
    cache = request.config.cache.mkdir("pretend_gpu")
    guard = compile_once(command, HERE / "guard.cpp", [HERE], cache).path
    folder = tmp_path_factory.mktemp("start")
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        f"from tests.pretend_gpu.device import install\ninstall({str(guard)!r})\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(GPUS, "0,1,2,3")
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: os.environ[GPUS].count(",") + 1)
        yield
