"""Packs a bundle for `make gpu-check` on a machine without a network. See docs/gpu-check.md.

python benchmarks/gpu/make_bundle.py --help

The machine must have torch, triton and transformers. The bundle has the wheels of tokenmill's other
dependencies, xformers, FlashAttention 3 from vLLM's wheel, and our CUDA kernels, compiled here.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bundle import CUDA_FOLDER, FOLDER, REPOSITORY, fingerprint, hash_of

LIMIT_MIB = 60
COMES_WITH_TORCH = ("torch", "numpy", "jinja2", "safetensors", "tokenizers")
"""Dependencies of tokenmill that every machine with torch and transformers has."""
FOR_CHECKS = ("pytest>=8.4", "pytest-timeout>=2.3", "hatchling>=1.27")
XFORMERS = "xformers==0.0.35"
VLLM = "vllm==0.26.0"
"""The vLLM whose FlashAttention 3 is taken. It is compiled for torch 2.11, CUDA 13 and compute
capability 9.0."""
FLASH_ATTENTION = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"


def main() -> None:
    """Make the bundle. Exits with a message if it is too large, or a part cannot be made."""
    args = parse_args()
    old = read_manifest(args.folder)
    args.folder.mkdir(exist_ok=True)
    manifest: dict[str, Any] = {
        "made": datetime.now(UTC).date().isoformat(),
        "python": args.python_version,
        "wheels": collect_wheels(args),
        "libraries": [],
    }
    if args.kernels:
        manifest["libraries"].append(build_kernels(args))
    if args.peers:
        manifest["libraries"].append(take_flash_attention(args, old))
    (args.folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    report_size(args.folder, manifest, args.limit)


def parse_args() -> Namespace:
    parser = ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the bundle")
    parser.add_argument("--python-version", default="3.12", help="Python of the GPU machine")
    parser.add_argument(
        "--glibc", type=int, default=35, help="N of the GPU machine's glibc 2.N, or an older one"
    )
    parser.add_argument(
        "--architectures", nargs="+", default=["8.0", "9.0"], help="GPUs to build kernels for"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_MIB, help="maximum MiB of bundle and checkout"
    )
    parser.add_argument(
        "--no-peers",
        dest="peers",
        action="store_false",
        help="leave out xformers and FlashAttention",
    )
    parser.add_argument(
        "--no-kernels",
        dest="kernels",
        action="store_false",
        help="leave out our kernels: the GPU machine has nvcc",
    )
    return parser.parse_args()


def collect_wheels(args: Namespace) -> list[dict[str, Any]]:
    """Resolve dependencies for the GPU machine, and download their wheels. Describes each wheel."""
    folder = args.folder / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [r for r in project["project"]["dependencies"] if name_of(r) not in COMES_WITH_TORCH]
    wanted += FOR_CHECKS
    print(f"resolving {len(wanted)} packages and their dependencies", flush=True)
    pinned = resolve(wanted, args)
    if args.peers:
        pinned.append(XFORMERS)
    print(f"downloading {len(pinned)} wheels", flush=True)
    pip("download", "--no-deps", "--dest", str(folder), *foreign(args), *pinned)
    minimums = {name_of(r): minimum_of(r) for r in wanted}
    return [describe_wheel(path, args.folder, minimums) for path in sorted(folder.glob("*.whl"))]


def resolve(requirements: Sequence[str], args: Namespace) -> list[str]:
    """NAME==VERSION of the requirements and their dependencies, without COMES_WITH_TORCH."""
    with tempfile.TemporaryDirectory() as empty:
        flags = ["--dry-run", "--ignore-installed", "--report", "-", "--target", empty]
        report = json.loads(pip("install", *flags, *foreign(args), *requirements))
    found = [item["metadata"] for item in report["install"]]
    return [
        f"{of['name']}=={of['version']}"
        for of in found
        if normalize(of["name"]) not in COMES_WITH_TORCH
    ]


def foreign(args: Namespace) -> list[str]:
    """pip's flags for the GPU machine's Python and system."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(args.glibc, 16, -1)]
    flags = ["--only-binary=:all:", "--implementation", "cp", "--python-version"]
    flags.append(args.python_version)
    for platform in [*platforms, "manylinux2014_x86_64", "manylinux1_x86_64"]:
        flags += ["--platform", platform]
    return flags


def pip(*arguments: str) -> str:
    """Run pip; returns its output. Exits with pip's error message if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"pip {arguments[0]} failed:\n{done.stderr.strip()}")
    return done.stdout


def describe_wheel(path: Path, folder: Path, minimums: dict[str, str | None]) -> dict[str, Any]:
    name, version = path.name.split("-")[:2]
    name = normalize(name)
    return {
        "name": name,
        "version": version,
        "at_least": minimums.get(name),
        **describe_file(path, folder),
    }


def build_kernels(args: Namespace) -> dict[str, Any]:
    """Build and pack our CUDA kernels. Exits with the reason if they cannot be built."""
    from tokenmill.backends.cuda.build import PREBUILT, build_library
    from tokenmill.backends.machine.compiling import BuildError
    from tokenmill.core.interfaces import no_progress

    architectures = args.architectures
    print(f"building the CUDA kernels for {', '.join(architectures)}", flush=True)
    try:
        library = build_library(no_progress, architectures)
    except BuildError as error:
        sys.exit(f"{error} (with --no-kernels the GPU machine builds them)")
    packed = args.folder / f"{PREBUILT.name}.xz"
    with library.open("rb") as source, lzma.open(packed, "wb", preset=6) as target:
        shutil.copyfileobj(source, target)
    return {
        "what": "tokenmill's CUDA kernels",
        "place": f"tokenmill/backends/cuda/{PREBUILT.name}",
        "architectures": architectures,
        "sources": fingerprint(CUDA_FOLDER),
        **describe_file(packed, args.folder),
    }


def take_flash_attention(args: Namespace, old: dict[str, Any]) -> dict[str, Any]:
    """Extract and compress one library of vLLM's wheel. A copy in the old bundle is reused."""
    packed = args.folder / f"{Path(FLASH_ATTENTION).name}.xz"
    entry = {
        "what": f"FlashAttention 3 of {VLLM}",
        "place": FLASH_ATTENTION,
        "architectures": ["9.0"],
        "sources": None,
    }
    for known in old.get("libraries", []):
        is_whole = packed.exists() and known["sha256"] == hash_of(packed)
        if known["what"] == entry["what"] and is_whole:
            return {**entry, **describe_file(packed, args.folder)}
    print(f"downloading {VLLM} (300 MB, for one library), then packing (2 minutes)", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--no-deps", "--dest", folder, *foreign(args), VLLM)
        (wheel,) = Path(folder).glob("*.whl")
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(FLASH_ATTENTION) as source,
            lzma.open(packed, "wb", preset=6) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
    return {**entry, **describe_file(packed, args.folder)}


def describe_file(path: Path, folder: Path) -> dict[str, Any]:
    file = path.relative_to(folder).as_posix()
    return {"file": file, "bytes": path.stat().st_size, "sha256": hash_of(path)}


def report_size(folder: Path, manifest: dict[str, Any], limit_mib: float) -> None:
    """Print the largest files and the size. Exits if bundle and checkout exceed the limit."""
    parts = [*manifest["wheels"], *manifest["libraries"]]
    bundle, tree = sum(part["bytes"] for part in parts), tree_bytes()
    for part in sorted(parts, key=lambda part: -part["bytes"])[:5]:
        print(f"{part['bytes'] / 2**20:8.1f} MiB  {part['file']}")
    total = (bundle + tree) / 2**20
    summary = f"{bundle / 2**20:.1f} MiB in {len(parts)} files, {total:.1f} MiB with the tree"
    if total > limit_mib:
        sys.exit(f"{folder} is too large: {summary}, and {limit_mib:g} MiB are allowed (--limit)")
    print(f"{folder}: {summary}")


def tree_bytes() -> int:
    """Size of all files in the checkout that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    paths = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an earlier bundle; empty if there is none."""
    path = folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return manifest


def name_of(requirement: str) -> str:
    return normalize(re.split(r"[\[<>=~! ;]", requirement, maxsplit=1)[0])


def minimum_of(requirement: str) -> str | None:
    found = re.search(r">=([\d.]+)", requirement)
    return found[1] if found else None


def normalize(name: str) -> str:
    """The normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
