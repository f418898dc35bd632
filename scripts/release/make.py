"""Makes a release: builds all files, tries each in a fresh environment, and writes the notes.

make release [ARGS="--output FOLDER"]

1. An sdist, and a wheel with compiled kernels for each of x86_64 and aarch64. The kernels of the
   other architecture need its cross compiler (Debian: g++-aarch64-linux-gnu).
2. `auditwheel` finds the oldest glibc that a wheel runs on; the wheel gets that tag.
3. The sdist and the wheel of this machine are installed in new environments, where no compiler is
   found, and answer a chat. With qemu-x86_64 (Debian: qemu-user) the wheel also answers on a CPU
   without AVX-512. With qemu-aarch64, the kernels of the wheel for the other architecture pass
   their self-test. If Debian's packages are available, that wheel also answers a chat on an
   emulated machine.
4. NOTES.md has the changes of this version, and of each file the size, tag and SHA-256.

A failure ends it, and names the step.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from notes import write_notes
from trying import try_emulated, try_kernels, try_package

ROOT = Path(__file__).parents[2]
MACHINES = ("x86_64", "aarch64")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the files of a release, and try them.")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder for the files (default: dist)"
    )
    output: Path = parser.parse_args().output.absolute()
    if run("git", "status", "--porcelain"):
        sys.exit("error: the checkout has changes: commit them, so that a commit is released")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    start = time.monotonic()

    def done(step: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {step}", flush=True)

    sdist = build(output, "--sdist", None)
    done(f"built {sdist.name}")
    wheels = {}
    for machine in MACHINES:
        own = machine == platform.machine()
        wheels[machine] = tagged(build(output, "--wheel", "1" if own else machine))
        done(f"built {wheels[machine].name}")
    with tempfile.TemporaryDirectory() as folder:
        for package in (sdist, wheels[platform.machine()]):
            text = try_package(package, Path(folder) / package.name)
            done(f"{package.name} answers: {text}")
        for machine, wheel in wheels.items():
            if machine != platform.machine():
                done(f"{wheel.name} {try_kernels(wheel, machine, Path(folder) / wheel.name)}")
                try_emulated(wheel, machine, Path(folder) / machine, done)
    notes = write_notes(output / "NOTES.md", [sdist, *wheels.values()])
    done(f"wrote {notes}")


def build(output: Path, what: str, prebuilt: str | None) -> Path:
    """Build one file into a folder of its own, and move it to `output`."""
    with tempfile.TemporaryDirectory(dir=output) as folder:
        environment = {**os.environ, **({"TOKENMILL_PREBUILT": prebuilt} if prebuilt else {})}
        run(
            *(sys.executable, "-m", "build", what, "--no-isolation", "-o", folder),
            environment=environment,
        )
        (made,) = Path(folder).iterdir()
        return made.rename(output / made.name)


def tagged(wheel: Path) -> Path:
    """The wheel with the tag of the oldest glibc that it runs on. It needs no other library."""
    shown = run(sys.executable, "-m", "auditwheel", "show", str(wheel))
    tags = [word.strip('",.') for word in shown.split() if word.strip('",.').startswith("manylin")]
    if not tags:
        sys.exit(f"error: auditwheel finds no manylinux tag for {wheel.name}:\n{shown}")
    made = run(
        *(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tags[0]),
        str(wheel),
    )
    return wheel.with_name(made.split()[-1])


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run a command in the checkout and return what it prints; its failure ends this program."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
