"""What of a bundle is used on a machine, and what is refused; no network is needed."""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import bundle
import make_bundle
import pytest
from bundle import BundleError, environment, fits, install, is_needed

KERNELS: dict[str, Any] = {"what": "kernels", "architectures": ["8.0", "9.0"], "sources": None}


def put(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    (folder / name).write_bytes(content)
    return {"file": name, "sha256": hashlib.sha256(content).hexdigest()}


def write_manifest(folder: Path, **content: Any) -> None:
    whole = {"wheels": [], "libraries": []} | content
    (folder / "manifest.json").write_text(json.dumps(whole))


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(bundle, "_pip", lambda site, *arguments: calls.append(arguments))
    return calls


def test_only_what_is_missing_or_too_old_is_installed() -> None:
    present = metadata.version("pluggy")
    assert is_needed({"name": "no-such-package", "at_least": None})
    assert is_needed({"name": "pluggy", "at_least": "999"})
    assert not is_needed({"name": "pluggy", "at_least": present})
    assert not is_needed({"name": "pluggy", "at_least": None})


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ("9.0", None),
        ("8.6", None),
        ("7.5", "it was built for 8.0, 9.0, this GPU has 7.5"),
        ("10.0", "it was built for 8.0, 9.0, this GPU has 10.0"),
        (None, "there is no GPU"),
    ],
)
def test_compiled_kernels_fit_gpus_of_their_kind(
    capability: str | None, reason: str | None
) -> None:
    assert fits(KERNELS, capability) == reason


def test_kernels_of_other_sources_are_not_used() -> None:
    own = bundle.fingerprint(bundle.CUDA_FOLDER)
    assert fits(KERNELS | {"sources": own}, "9.0") is None
    assert "have changed" in (fits(KERNELS | {"sources": "other"}, "9.0") or "")


def test_libraries_are_unpacked_to_their_places(
    tmp_path: Path, no_pip: list[tuple[str, ...]]
) -> None:
    packed = put(tmp_path, "library.so.xz", lzma.compress(b"machine code"))
    entry = KERNELS | packed | {"place": "vllm/deep/library.so"}
    wheel = put(tmp_path, "a.whl", b"") | {"name": "no-such", "version": "1", "at_least": None}
    write_manifest(tmp_path, libraries=[entry], wheels=[wheel])
    said = install(tmp_path, tmp_path / "site", "9.0")
    assert said == ["no-such 1 from the bundle", "kernels of the bundle"]
    assert (tmp_path / "site" / "vllm/deep/library.so").read_bytes() == b"machine code"
    assert [arguments[-1] for arguments in no_pip] == [
        str(tmp_path / "a.whl"),
        str(bundle.REPOSITORY),
    ]


def test_a_damaged_or_missing_file_is_refused(
    tmp_path: Path, no_pip: list[tuple[str, ...]]
) -> None:
    entry = KERNELS | put(tmp_path, "library.so.xz", b"") | {"place": "library.so"}
    write_manifest(tmp_path, libraries=[entry])
    (tmp_path / "library.so.xz").write_bytes(b"other")
    with pytest.raises(BundleError, match="damaged"):
        install(tmp_path, tmp_path / "site", "9.0")
    (tmp_path / "library.so.xz").unlink()
    with pytest.raises(BundleError, match="missing"):
        install(tmp_path, tmp_path / "site", "9.0")
    assert no_pip == []


def test_without_a_bundle_the_installation_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "as installed" in install(tmp_path, tmp_path / "site", None)[0]

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(BundleError, match="make gpu-bundle"):
        install(tmp_path, tmp_path / "site", None)


def test_what_is_installed_is_found_first(tmp_path: Path) -> None:
    assert environment(tmp_path)["PYTHONPATH"].startswith(str(tmp_path))


def test_a_bundle_that_is_too_large_is_refused(tmp_path: Path) -> None:
    part = {"file": "large.whl", "bytes": 40 << 20}
    manifest = {"wheels": [part, part], "libraries": []}
    with pytest.raises(SystemExit, match="too large"):
        make_bundle.report_size(tmp_path, manifest, 60)


def test_requirements_are_taken_apart() -> None:
    assert make_bundle.name_of("Prometheus_Client>=0.21") == "prometheus-client"
    assert make_bundle.name_of("uvicorn[standard]>=0.34") == "uvicorn"
    assert make_bundle.minimum_of("ruff>=0.17.5,<0.18") == "0.17.5"
    assert make_bundle.minimum_of("torch") is None


def test_a_failing_pip_ends_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match="pip download failed"):
        make_bundle.pip("download")
