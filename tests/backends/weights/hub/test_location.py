"""Names of models: paths first, then the Hugging Face cache; nothing is downloaded unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.backends.weights.hub.location import locate_model
from tokenmill.backends.weights.hub.name import HubName, cache_folder, parse_hub_name
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


@pytest.fixture
def cache(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and an empty working directory beside it."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(own_folder / "cache"))
    return own_folder / "cache"


def fill(cache: Path, repo: str, *files: str, revision: str = "main", commit: str = COMMIT) -> Path:
    """Put a revision with empty files into the cache, as huggingface_hub does."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / "0").touch()
    (folder / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(commit)
    for file in files:
        path = folder / "snapshots" / commit / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(folder / "blobs" / "0")
    return folder / "snapshots" / commit


def locate(text: str) -> Path:
    return locate_model(text, allow_download=False, progress=no_progress)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("org/name", HubName(repo="org/name")),
        ("org/Name-1.5_b@v1.0", HubName(repo="org/Name-1.5_b", revision="v1.0")),
        ("org/name@refs/pr/3", HubName(repo="org/name", revision="refs/pr/3")),
        ("org/name:Q4_K_M", HubName(repo="org/name", quant="Q4_K_M")),
        ("org/name:q8_0@main", HubName(repo="org/name", quant="q8_0")),
        ("org/name/a.gguf", HubName(repo="org/name", file="a.gguf")),
        ("org/name/sub/a.gguf@x", HubName(repo="org/name", file="sub/a.gguf", revision="x")),
        ("name", None),
        ("/org/name", None),
        ("./name", None),
        ("../org/name", None),
        ("org/../name", None),
        ("org/name/dir", None),
        ("folder/a.gguf", None),
        ("org/name/a.gguf:Q8_0", None),
        ("org/name@../../etc", None),
        ("org/na me", None),
        ("", None),
    ],
)
def test_a_name_has_a_repository_and_perhaps_a_file_a_quantization_and_a_revision(
    text: str, parsed: HubName | None
) -> None:
    assert parse_hub_name(text) == parsed


@pytest.mark.parametrize(
    ("variable", "inside"),
    [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_the_cache_is_where_huggingface_hub_has_it(
    variable: str, inside: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv(variable, str(tmp_path / "set"))
    assert cache_folder() == tmp_path / "set" / inside


def test_a_path_that_exists_wins(cache: Path) -> None:
    fill(cache, "org/name", "config.json", "model.safetensors")
    (cache.parent / "org" / "name").mkdir(parents=True)
    assert locate("org/name") == Path("org/name")


def test_a_text_that_is_no_name_stays_a_path(cache: Path) -> None:
    assert locate("no-such-file.gguf") == Path("no-such-file.gguf")
    assert locate("~") == Path.home()


def test_a_repository_with_safetensors_is_its_snapshot(cache: Path) -> None:
    snapshot = fill(cache, "org/name", "config.json", "model.safetensors", "m.gguf")
    assert locate("org/name") == snapshot


def test_a_revision_is_a_branch_or_a_commit(cache: Path) -> None:
    main = fill(cache, "org/name", "model.safetensors")
    pull = fill(cache, "org/name", "model.safetensors", revision="refs/pr/1", commit="f" * 40)
    assert locate("org/name@refs/pr/1") == locate(f"org/name@{'f' * 40}") == pull
    assert locate(f"org/name@{COMMIT}") == locate("org/name@main") == main
    with pytest.raises(ConfigError, match=r"nor revision v2 of org/name in .*--revision v2"):
        locate("org/name@v2")


def test_the_only_gguf_model_of_a_repository_needs_no_name(cache: Path) -> None:
    snapshot = fill(cache, "org/name", "config.json", "m-Q8_0.gguf", "mmproj-m-f16.gguf")
    assert locate("org/name") == snapshot / "m-Q8_0.gguf"


GGUFS = ("m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-IQ4_0.gguf", "big/m-BF16-00001-of-00002.gguf",
         "big/m-BF16-00002-of-00002.gguf")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("org/name:Q4_0", "m-Q4_0.gguf"),
        ("org/name:q4_k_m", "m-Q4_K_M.gguf"),
        ("org/name:BF16", "big/m-BF16-00001-of-00002.gguf"),
        ("org/name/m-Q4_0.gguf", "m-Q4_0.gguf"),
        ("org/name/big/m-BF16-00002-of-00002.gguf", "big/m-BF16-00002-of-00002.gguf"),
    ],
)
def test_a_quantization_or_a_file_chooses_among_gguf_models(
    text: str, file: str, cache: Path
) -> None:
    snapshot = fill(cache, "org/name", *GGUFS)
    assert locate(text) == snapshot / file


def test_several_gguf_models_are_listed(cache: Path) -> None:
    fill(cache, "org/name", *GGUFS)
    listed = r"m-BF16-00001-of-00002.gguf, m-IQ4_0.gguf, m-Q4_0.gguf, m-Q4_K_M.gguf"
    with pytest.raises(ConfigError, match=rf"has the GGUF models .*{listed}: name one as org/name"):
        locate("org/name")
    with pytest.raises(ConfigError, match=rf"no such model, but the GGUF models .*{listed}"):
        locate("org/name:Q6_K")
    with pytest.raises(ConfigError, match=rf"no such model, but the GGUF models .*{listed}"):
        locate("org/name/other.gguf")


def test_a_model_that_is_not_cached_says_where_it_was_looked_for_and_how_to_get_it(
    cache: Path,
) -> None:
    with pytest.raises(ConfigError) as caught:
        locate("org/name/m.gguf")
    message = str(caught.value)
    assert str(cache) in message
    assert "add --allow-download, or run `hf download org/name m.gguf` first" in message


@pytest.mark.parametrize(
    ("text", "revision", "message"),
    [
        ("org/name@v1", "v2", "--revision v2 differs from the revision in --model org/name@v1"),
        (
            "org/name",
            "../../x",
            r"--revision '../../x' is not the name of a branch, a tag or a commit",
        ),
        ("./no-such-folder", "v2", "--revision v2 has no effect on ./no-such-folder"),
    ],
)
def test_a_revision_that_cannot_be_meant_is_refused(
    text: str, revision: str, message: str, cache: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        locate_model(text, allow_download=False, progress=no_progress, revision=revision)


def test_a_reference_never_leads_out_of_the_cache(cache: Path) -> None:
    fill(cache, "org/name", "model.safetensors")
    (cache / "models--org--name" / "refs" / "main").write_text("../../..")
    with pytest.raises(ConfigError, match="no model org/name"):
        locate("org/name")
