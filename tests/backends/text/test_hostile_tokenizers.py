"""Damaged and hostile tokenizer directories: each loads, or is refused in one line."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenmill.backends.text import load
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.core.errors import ConfigError, InvalidRequestError

from .hostile_tokenizers import changed_bytes, changed_json

CASES = 60
"""Cases of each kind in `make test`."""
SOAK = 200
MEMORY = 64 << 20
"""Bytes that Python may allocate for a case. Tables of 2^18 unused ids take 6 MB."""
TEXT = "a b\x00 ▁é<end>"
CHAT = [{"role": "user", "content": "a <end>"}]


def byte_level() -> Tokenizer:
    chars = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(chars[65], chars[66]), (chars[66], chars[67])]
    vocab = {text: i for i, text in enumerate([*chars, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("▁a", -1.5), ("b", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    vocab = {"[UNK]": 0, "a": 1, "##b": 2, "b": 3}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "byte-level tokenizer.json": (byte_level, "tokenizer.json"),
    "unigram tokenizer.json": (unigram, "tokenizer.json"),
    "word-piece tokenizer.json": (word_piece, "tokenizer.json"),
    "tokenizer_config.json": (byte_level, "tokenizer_config.json"),
    "special_tokens_map.json": (unigram, "special_tokens_map.json"),
    "bytes of tokenizer.json": (word_piece, "tokenizer.json"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A file to try, without its bytes in Hypothesis's reports."""

    content: bytes

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{len(self.content)} bytes")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(kind: str, tmp_path: Path) -> Path:
    return write_directory(tmp_path, KINDS[kind][0]())


def write_directory(path: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    tokenizer.save(str(path / "tokenizer.json"))
    last = tokenizer.get_vocab_size() - 1
    config = {
        "eos_token": "<end>",
        "chat_template": "{% for m in messages %}{{ m.content }}<end>{% endfor %}",
        "added_tokens_decoder": {str(last): {"content": "<end>", "special": True}},
        "add_bos_token": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    special = {"bos_token": {"content": "<end>", "lstrip": False}, "unk_token": "<unk>"}
    (path / "special_tokens_map.json").write_text(json.dumps(special))
    return path


def test_a_hostile_tokenizer_is_refused_in_one_line_or_harmless(kind: str, directory: Path) -> None:
    fuzz(kind, directory, CASES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_hostile_tokenizers_are_refused_in_one_line_or_harmless(
    kind: str, directory: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", SOAK * CASES)
    fuzz(kind, directory, SOAK * CASES)


def fuzz(kind: str, directory: Path, num_cases: int) -> None:
    path = directory / KINDS[kind][1]
    valid = path.read_bytes()
    in_bytes = kind.startswith("bytes")
    contents = changed_bytes(valid) if in_bytes else changed_json(json.loads(valid))
    loaded = [0, 0]

    @settings(
        max_examples=num_cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=contents.map(Case))
    def check(case: Case) -> None:
        path.write_bytes(case.content)
        loaded[check_tokenizer(directory)] += 1

    try:
        check()
    except BaseException:
        shutil.copy(path, directory / "failing")  # the smallest that hypothesis found
        raise
    assert in_bytes or loaded[True] > num_cases // 50, loaded


def check_tokenizer(directory: Path) -> bool:
    """Load the tokenizer and use all of it; return whether it could be loaded."""
    tracemalloc.start()
    try:
        tokenizer = load_tokenizer(directory)
        use(tokenizer)
        return True
    except ConfigError as error:
        assert str(error).isprintable() and len(str(error)) < 1000, error
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY


def use(tokenizer: Any) -> None:
    """Encode and decode. A request may be refused, but nothing else may happen."""
    try:
        ids = tokenizer.encode(TEXT)
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
        tokenizer.decode([*ids, 0, 10**6])
        detokenizer = tokenizer.detokenizer()
        for token_id in ids:
            detokenizer.add([token_id])
        tokenizer.encode(TEXT, parse_special=False)
        tokenizer.encode_chat(CHAT)
    except InvalidRequestError as error:
        assert str(error).isprintable() and len(str(error)) < 1000, error


def test_a_tokenizer_json_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_directory(tmp_path, word_piece())
    monkeypatch.setattr(load, "_MAX_TOKENIZER_BYTES", 1 << 20)
    with (tmp_path / "tokenizer.json").open("ab") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(ConfigError, match=r"tokenizer.json cannot be read.*larger than 1 MiB"):
        load_tokenizer(tmp_path)


def test_a_token_with_an_absurd_id_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = write_directory(tmp_path, word_piece()) / "tokenizer.json"
    content = json.loads(path.read_text())
    (tmp_path / "tokenizer_config.json").unlink()
    content["model"]["vocab"]["far"] = 2**32 - 1
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"the id {2**32 - 1} is too large"):
        load_tokenizer(tmp_path)
