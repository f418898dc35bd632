"""Packs what a GPU machine without a network lacks, for `make gpu-check`: see docs/gpu-check.md.

gpu_bundle.py --help

The machine has torch, triton and transformers. The bundle brings the wheels of tokenmill's other
dependencies, xformers, FlashAttention 3 out of vLLM's wheel, and our CUDA kernels, compiled here.
"""

from __future__ import annotations

import hashlib
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

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / ".gpu-bundle"
LIMIT_MIB = 60
COMES_WITH_TORCH = ("torch", "numpy", "jinja2", "safetensors", "tokenizers")
"""Of tokenmill's dependencies: what every machine with torch and transformers has."""
FOR_CHECKS = ("pytest>=8.4", "pytest-timeout>=2.3", "hatchling>=1.27")
XFORMERS = "xformers==0.0.35"
VLLM = "vllm==0.26.0"
"""Its FlashAttention 3 is compiled for torch 2.11 and CUDA 13, for compute capability 9.0."""
FLASH_ATTENTION = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
CUDA_FOLDER = Path("src/backends/cuda")


def main() -> None:
    """Make the bundle; exits with a message when it is too large or a part cannot be had."""
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
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to put it")
    parser.add_argument("--python-version", default="3.12", help="of the GPU machine")
    parser.add_argument("--glibc", type=int, default=35, help="2.N of the GPU machine, or older")
    parser.add_argument(
        "--architectures", nargs="+", default=["8.0", "9.0"], help="that kernels are built for"
    )
    parser.add_argument("--limit", type=float, default=LIMIT_MIB, help="MiB, with the tree")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave them out")
    parser.add_argument(
        "--no-kernels", dest="kernels", action="store_false", help="the machine has nvcc"
    )
    return parser.parse_args()


def collect_wheels(args: Namespace) -> list[dict[str, Any]]:
    """Resolve for the other machine, download, and say what each wheel is."""
    folder = args.folder / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [r for r in project["project"]["dependencies"] if name_of(r) not in COMES_WITH_TORCH]
    wanted += FOR_CHECKS
    print(f"finding wheels of {len(wanted)} packages and what they need", flush=True)
    pinned = resolve(wanted, args)
    if args.peers:
        pinned.append(XFORMERS)
    print(f"downloading {len(pinned)} wheels", flush=True)
    pip("download", "--no-deps", "--dest", str(folder), *foreign(args), *pinned)
    minimums = {name_of(r): minimum_of(r) for r in wanted}
    return [describe_wheel(path, args.folder, minimums) for path in sorted(folder.glob("*.whl"))]


def resolve(requirements: Sequence[str], args: Namespace) -> list[str]:
    """NAME==VERSION of the requirements and all that they need, but for what comes with torch."""
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
    """pip's flags for a Python and a system that are not those here."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(args.glibc, 16, -1)]
    flags = ["--only-binary=:all:", "--implementation", "cp", "--python-version"]
    flags.append(args.python_version)
    for platform in [*platforms, "manylinux2014_x86_64", "manylinux1_x86_64"]:
        flags += ["--platform", platform]
    return flags


def pip(*arguments: str) -> str:
    """What it prints; exits with its complaint when it fails."""
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
    """Our own CUDA kernels; exits with the reason when they cannot be built."""
    from tokenmill.backends.cuda.build import PREBUILT, build_library
    from tokenmill.backends.machine.compiling import BuildError

    architectures = args.architectures
    print(f"building the CUDA kernels for {', '.join(architectures)}", flush=True)
    try:
        library = build_library(lambda stage, part: None, architectures)
    except BuildError as error:
        sys.exit(f"{error} (--no-kernels leaves them to the GPU machine)")
    packed = args.folder / f"{PREBUILT.name}.xz"
    with library.open("rb") as source, lzma.open(packed, "wb", preset=6) as target:
        shutil.copyfileobj(source, target)
    return {
        "what": "tokenmill's CUDA kernels",
        "place": f"tokenmill/backends/cuda/{PREBUILT.name}",
        "architectures": architectures,
        "sources": fingerprint(REPOSITORY / CUDA_FOLDER),
        **describe_file(packed, args.folder),
    }


def fingerprint(folder: Path) -> str:
    """Of what the kernels are built from; benchmarks/gpu/bundle.py compares it with the tree."""
    digest = hashlib.sha256()
    for path in sorted([folder / "build.py", *(folder / "csrc").iterdir()]):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def take_flash_attention(args: Namespace, old: dict[str, Any]) -> dict[str, Any]:
    """One library out of vLLM's wheel, packed tighter; that of an earlier bundle is kept."""
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


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def report_size(folder: Path, manifest: dict[str, Any], limit_mib: float) -> None:
    """Say what is in it; exits with a message when it is too large to go with the tree."""
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
    """Of the files that git knows or would take in."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    paths = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Of an earlier bundle; empty if there is none."""
    path = folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return manifest


def name_of(requirement: str) -> str:
    return normalize(re.split(r"[\[<>=~! ;]", requirement, maxsplit=1)[0])


def minimum_of(requirement: str) -> str | None:
    found = re.search(r">=([\d.]+)", requirement)
    return found[1] if found else None


def normalize(name: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
