"""Tries packages: in a fresh environment without a compiler, or on an emulated CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from emulated import EmulatedMachine, missing_for

ROOT = Path(__file__).parents[2]
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "temperature": 0,
    "max_tokens": 12,
}
ANSWER = "The capital of Japan is Tokyo."
"""The answer of the default model. At each token, no other token is half as likely, so rounding
does not change the answer."""
NOT_BUILT = "cpu_kernels_not_built"
START_SECONDS = 900
"""An emulated server starts within two minutes. A busy machine needs more."""
NO_AVX512 = "Haswell"
"""A CPU of qemu with AVX2 and without AVX-512."""


def try_package(package: Path, folder: Path) -> str:
    """Install a package into an environment at `folder`; returns its answer to QUESTION.

    A wheel must answer with its own kernels, also on an emulated CPU without AVX-512; the text says
    if the emulator is missing. Raises RuntimeError if it does not answer.
    """
    python = _install(package, folder)
    environment = _without_compiler(folder)
    text, log = _ask([str(python)], environment)
    if package.suffix == ".whl" and NOT_BUILT in log:
        raise RuntimeError(f"{package.name} does not use its kernels:\n{log}")
    if package.suffix != ".whl" or "x86_64" not in package.name:
        return text
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        return f"{text} (not tried without AVX-512: qemu-x86_64 is missing)"
    # The emulated Python would start the engine's process on the real CPU.
    emulated = [emulator, "-cpu", NO_AVX512, str(python)]
    again, log = _ask(emulated, environment, "--no-engine-process")
    if NOT_BUILT in log or "avx512" in log:
        raise RuntimeError(f"{package.name} does not use its kernels for AVX2:\n{log}")
    return f"{text} (without AVX-512, emulated: {again})"


def try_kernels(wheel: Path, machine: str, folder: Path) -> str:
    """Run the self-test of all kernels of a wheel for another architecture, on an emulated CPU.

    It needs qemu-user, and the C++ libraries of the cross compiler. Returns the outcome. Raises
    RuntimeError if a library fails.
    """
    emulator, libraries = shutil.which(f"qemu-{machine}"), Path(f"/usr/{machine}-linux-gnu")
    if emulator is None or not libraries.exists():
        return f"was not tried: qemu-{machine} or {libraries} is missing"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder, [name for name in file.namelist() if "/prebuilt/" in name])
    [program] = folder.rglob("tokenmill_cpu_self_test")
    program.chmod(0o700)
    names = []
    for library in sorted(program.parent.glob("libtokenmill_cpu_*.so")):
        name = library.stem.removeprefix("libtokenmill_cpu_")
        if name == "probe":
            continue
        command = [emulator, "-cpu", "max", "-L", str(libraries), str(program), str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or done.stdout:
            raise RuntimeError(
                f"{library.name} of {wheel.name} fails its self-test:\n{done.stdout}"
            )
        names.append(name)
    return f"passes the self-tests of its kernels, emulated: {', '.join(names)}"


def try_emulated(wheel: Path, machine: str, folder: Path, done: Callable[[str], None]) -> None:
    """Check that a wheel for another architecture answers QUESTION on an emulated machine.

    Needs qemu-user and Debian's packages. Calls `done` with each result, or with the names of
    missing programs. Raises RuntimeError if the wheel does not answer.
    """
    missing = missing_for(machine)
    if missing:
        done(f"{wheel.name} is not tried on an emulated machine: {', '.join(missing)} is missing")
        return
    emulator = f"qemu-{machine}"
    emulated = EmulatedMachine(machine=machine, emulator=emulator, folder=folder)
    emulated.install_python()
    done(f"{machine}: Debian's Python runs, emulated")
    emulated.install(wheel, *_wanted())
    done(f"{machine}: torch, {wheel.name} and the default model are installed")
    environment = _without_compiler(folder) | {"PYTHONPATH": str(emulated.packages)}
    text, log = _ask(emulated.python, environment, "--no-engine-process")
    if NOT_BUILT in log:
        raise RuntimeError(f"{wheel.name} does not use its kernels:\n{log}")
    done(f"{wheel.name} answers, emulated: {text}")


def _wanted() -> tuple[str, str, str]:
    """The torch, its index of CPU builds and the default model that the Makefile names."""
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    given = dict(line.split(" ?= ") for line in make.splitlines() if line.startswith("TORCH"))
    model = next(line.split(" = ")[1] for line in make.splitlines() if "MODEL_PACKAGE =" in line)
    return given["TORCH"], given["TORCH_INDEX"], model


def _install(package: Path, folder: Path) -> Path:
    """A new environment with the package, torch for CPUs and the default model."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    torch, index, model = _wanted()
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # An sdist is built without isolation, so that no registry is asked twice.
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for command in (
        [str(ROOT / "scripts/install_torch.py"), torch, index],
        [*pip, *backend],
        [*pip, "--no-build-isolation", str(package)],
        [*pip, "--no-deps", model],
    ):
        subprocess.run([str(python), *command], check=True, stdout=subprocess.DEVNULL)
    return python


def _without_compiler(folder: Path) -> dict[str, str]:
    """Variables with which no compiler is found, and no kernels that were built before."""
    kept = {name: os.environ[name] for name in ("LANG", "HOME") if name in os.environ}
    return kept | {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "CXX": "/no/compiler",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def _ask(python: list[str], environment: dict[str, str], *flags: str) -> tuple[str, str]:
    """The answer of a server that is started for it, and the server's log."""
    command = [*python, "-P", "-m", "tokenmill", "serve", "--port", "0", *flags]
    with tempfile.NamedTemporaryFile("w+") as log, _serving(command, environment, log.name) as url:
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(QUESTION).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
            text = json.load(response)["choices"][0]["message"]["content"]
        if text != ANSWER:
            raise RuntimeError(f"the answer must be {ANSWER!r}, got {text!r}")
        return text, Path(log.name).read_text(encoding="utf-8")


@contextmanager
def _serving(command: list[str], environment: dict[str, str], log: str) -> Iterator[str]:
    """The address of a server, which ends with the block."""
    with open(log, "w") as stream, tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=stream,
            stderr=stream,
        )
        try:
            yield _address(server, Path(log))
        finally:
            server.terminate()
            server.wait(60)


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if '"event":"listening"' in line.replace(" ", ""):
                return str(json.loads(line)["address"])
        time.sleep(0.5)
    print(log.read_text(encoding="utf-8"), file=sys.stderr)
    raise RuntimeError("the server does not start; its log is above")
