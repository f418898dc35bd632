"""scripts/install_torch.py and make_venv.py with a real pip, and small wheels for torch's."""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "install_torch.py"
UNREACHABLE = "http://127.0.0.1:9/cpu"


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """A wheel with one empty module that knows its version."""
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"__version__ = '{version}'\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but pip, a copy of the one of this environment: to install and
    compile it takes three seconds."""
    folder = tmp_path_factory.mktemp("machine") / "venv"
    venv.create(folder)
    [packages] = folder.glob("lib/python*/site-packages")
    of_pip = distribution("pip").files or []
    for name in {path.parts[0] for path in of_pip if path.parts[0].startswith("pip")}:
        shutil.copytree(str(distribution("pip").locate_file(name)), packages / name)
    return folder


@pytest.fixture
def packages(machine: Path) -> Path:
    """Where that environment's packages lie; torch and its needs are not there yet."""
    [folder] = machine.glob("lib/python*/site-packages")
    for path in folder.iterdir():
        if path.name.startswith(("torch", "nvidia")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """What pip's default index has."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def install(
    machine: Path,
    wheels: Path,
    requirement: str = "torch==2.13.0",
    index: str = UNREACHABLE,
    *more: str,
) -> subprocess.CompletedProcess[str]:
    """Run the script on that machine, which has no GPU."""
    return subprocess.run(
        [str(machine / "bin" / "python"), str(SCRIPT), requirement, index, *more],
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("PIP_")},
            "PATH": "",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cuda_build_is_refused_where_there_is_no_gpu(
    machine: Path, packages: Path, wheels: Path
) -> None:
    """Nothing is installed then, and the message says what can be done."""
    write_wheel(wheels, "torch", "2.13.0", requires="nvidia-cublas")
    write_wheel(wheels, "nvidia_cublas", "13.0")
    done = install(machine, wheels)
    assert done.returncode == 1
    assert "only a CUDA build" in done.stderr
    assert "TORCH_INDEX=URL" in done.stderr
    assert not (packages / "torch.py").exists()


def test_an_empty_index_takes_what_the_default_one_has(
    machine: Path, packages: Path, wheels: Path
) -> None:
    write_wheel(wheels, "torch", "2.13.0", requires="nvidia-cublas")
    write_wheel(wheels, "nvidia_cublas", "13.0")
    assert install(machine, wheels, index="").returncode == 0
    assert (packages / "nvidia_cublas.py").exists()


def test_a_cpu_build_of_the_default_index_is_taken_when_the_other_cannot_be_reached(
    machine: Path, packages: Path, wheels: Path
) -> None:
    write_wheel(wheels, "torch", "2.13.0+cpu")
    done = install(machine, wheels)
    assert done.returncode == 0, done.stderr
    assert f"{UNREACHABLE} cannot be reached" in done.stdout
    assert (packages / "torch.py").exists()


def test_the_sizes_of_what_is_missing_are_stated(
    machine: Path, packages: Path, wheels: Path, tmp_path: Path
) -> None:
    """Not torch, which is there, and not what the model needs, which is installed without it."""
    (packages / "torch.py").write_text("__version__ = '2.13.0'\n")
    write_wheel(wheels, "other", "1.0", requires="small")
    write_wheel(wheels, "small", "1.0")
    write_wheel(wheels, "model", "1.0", requires="missing")
    with zipfile.ZipFile(wheels / "model-1.0-py3-none-any.whl", "a", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("weights", bytes(30_000_000))
        wheel.writestr("noise", os.urandom(2_000_000))
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\ndependencies = ["torch>=2.11", "other>=1"]\n')
    done = install(machine, wheels, "torch==2.13.0", "", str(pyproject), "model==1.0")
    assert done.returncode == 0, done.stderr
    assert "\n3 packages: 2 MB to download, 32 MB on disk" in done.stdout
    assert not (packages / "model.py").exists(), "make installs it, not this script"


def test_the_sizes_of_a_wheel_on_a_server_are_read_from_its_end(tmp_path: Path) -> None:
    """Even if the list of files is longer than what is read first."""
    path = tmp_path / "long-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for number in range(1500):
            wheel.writestr(f"{number:0100}.txt", "text")
        wheel.writestr("noise", os.urandom(5_000_000))
    with serve_ranges(path) as (url, sent):
        script = runpy.run_path(str(SCRIPT.with_name("install_sizes.py")))
        sizes = script["sizes_of"]([script["Planned"](name="long", url=url)])
    assert sizes.download == path.stat().st_size
    assert sizes.disk == 1500 * 4096 + -(-5_000_000 // 4096) * 4096
    assert sum(sent) < path.stat().st_size


@contextlib.contextmanager
def serve_ranges(path: Path) -> Iterator[tuple[str, list[int]]]:
    """A server with one file, which it sends in parts, and the sizes of the parts."""
    content, sent = path.read_bytes(), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = min(int(self.headers["Range"].removeprefix("bytes=-")), len(content))
            sent.append(length)
            self.send_response(206)
            first, last = len(content) - length, len(content) - 1
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.end_headers()
            self.wfile.write(content[first:])

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{path.name}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_suitable_torch_is_kept(machine: Path, packages: Path, wheels: Path) -> None:
    (packages / "torch.py").write_text("__version__ = '2.11.1+cu130'\n")
    done = install(machine, wheels)
    assert done.returncode == 0
    assert "torch 2.11.1+cu130 is installed already" in done.stdout


def test_a_torch_that_is_too_old_is_replaced(machine: Path, packages: Path, wheels: Path) -> None:
    (packages / "torch.py").write_text("__version__ = '2.9.0'\n")
    write_wheel(wheels, "torch", "2.13.0")
    assert install(machine, wheels).returncode == 0
    assert "2.13.0" in (packages / "torch.py").read_text()


def test_a_torch_that_does_not_exist_ends_with_pips_own_words(
    machine: Path, packages: Path, wheels: Path
) -> None:
    done = install(machine, wheels, requirement="torch==9.9")
    assert done.returncode != 0
    assert "torch==9.9" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.check  # it makes an environment of the Python that runs the tests
def test_the_environment_shares_the_packages_of_a_python_that_has_torch(tmp_path: Path) -> None:
    """As in a GPU image; nothing has to be downloaded then."""
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0+cu130'\n")
    python = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run(
        [str(python), str(SCRIPT.with_name("make_venv.py")), str(tmp_path / "venv")],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sharing its torch 2.13.0+cu130" in done.stdout
    config = (tmp_path / "venv" / "pyvenv.cfg").read_text()
    assert "include-system-site-packages = true" in config
