"""Tokenizers from directories and files on disk, as models come."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tokenmill.backends.text.chat.given_template import read_chat_template
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.backends.weights.files.bounded import MAX_BYTES
from tokenmill.core.errors import ConfigError

CHAT = [{"role": "user", "content": "hi <|im_end|>"}]


@pytest.fixture(scope="module")
def saved(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's tokenizer as transformers saves it."""
    path = tmp_path_factory.mktemp("saved")
    oracle.save_pretrained(path)
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(file: Path, **fields: Any) -> None:
    """Sets fields of a JSON file; None takes them out."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    content = {key: value for key, value in (content | fields).items() if value is not None}
    file.write_text(json.dumps(content), encoding="utf-8")


def test_a_saved_directory_gives_the_tokenizer_of_the_gguf(
    directory: Path, smollm: HFTokenizer, text: str
) -> None:
    """Same ids, text, special tokens and chats."""
    tokenizer = load_tokenizer(directory)
    ids = smollm.encode(text)
    assert (tokenizer.encode(text), tokenizer.decode(ids)) == (ids, smollm.decode(ids))
    assert tokenizer.special_tokens == smollm.special_tokens
    assert tokenizer.vocab_size == smollm.vocab_size
    assert tokenizer.encode_chat(CHAT) == smollm.encode_chat(CHAT)


def test_the_jinja_file_goes_before_the_configuration(directory: Path) -> None:
    """As in transformers."""
    change(directory / "tokenizer_config.json", chat_template="config")
    (directory / "chat_template.jinja").write_text("file", encoding="utf-8")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)) == "file"


def test_of_named_templates_the_default_is_taken(directory: Path) -> None:
    """A list without one is no template."""
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    change(directory / "tokenizer_config.json", chat_template=named)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)) == "plain"
    change(directory / "tokenizer_config.json", chat_template=named[:1])
    assert not load_tokenizer(directory).has_chat_template


def test_a_tokenizer_json_alone_is_enough(directory: Path) -> None:
    """Without roles for tokens and without chats."""
    for file in directory.iterdir():
        if file.name != "tokenizer.json":
            file.unlink()
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("Hello<|im_end|>") == [19556, 2]
    assert tokenizer.special_tokens.eos is None
    assert not tokenizer.has_chat_template


def test_special_tokens_may_stand_in_a_file_of_their_own(directory: Path) -> None:
    """As text or as object."""
    change(directory / "tokenizer_config.json", bos_token=None, eos_token=None)
    tokens = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": False}}
    change(directory / "special_tokens_map.json", **tokens)
    tokenizer = load_tokenizer(directory)
    found = tokenizer.special_tokens
    assert (found.bos, found.eos) == ("<|im_start|>", "<|im_end|>")


def test_a_word_with_a_role_becomes_special(directory: Path, smollm: HFTokenizer) -> None:
    """EOS is skipped in decoding though tokenizer.json lists it as an ordinary word."""
    change(directory / "tokenizer_config.json", eos_token="Ġthe")
    tokenizer = load_tokenizer(directory)
    word = smollm.encode(" the")
    assert (smollm.decode(word), tokenizer.decode(word)) == (" the", "")


def test_added_tokens_of_the_configuration_are_added(directory: Path) -> None:
    """Where tokenizer.json lacks them; their ids must be the next ones."""
    listed = {"49152": {"content": "<new>", "special": True, "normalized": False}}
    change(directory / "tokenizer_config.json", added_tokens_decoder=listed)
    assert load_tokenizer(directory).encode("<new>") == [49152]
    change(directory / "tokenizer_config.json", added_tokens_decoder={"50000": listed["49152"]})
    with pytest.raises(ConfigError, match="'<new>' cannot have id 50000"):
        load_tokenizer(directory)


def test_truncation_and_padding_of_the_file_are_ignored(
    sentencepiece_backend: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    """They are for training; a prompt is never cut silently."""
    backend = sentencepiece_backend()
    whole = backend.encode("the dog again").ids
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("the dog again") == whole


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("tokenizer.json", "{}", "tokenizer.json cannot be read as a tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read as JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        (
            "tokenizer_config.json",
            '{"chat_template": 1}',
            "chat_template must be a string or a list",
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"x": {}}}',
            "added_tokens_decoder is malformed",
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"-1": {"content": "a"}}}',
            "added_tokens_decoder is malformed: '-1' is not the id of a token",
        ),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": [1]}, {"name": "default", "template": 1}]}',
            "chat_template must be a string or a list",
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": [1]}',
            "added_tokens_decoder is malformed",
        ),
        (
            "tokenizer_config.json",
            "{}" + " " * MAX_BYTES,
            "tokenizer_config.json cannot be read as JSON: it is larger than 32 MiB",
        ),
        ("special_tokens_map.json", "nonsense", "special_tokens_map.json cannot be read as JSON"),
        ("chat_template.jinja", "{% endif %}", "chat template of .* is not valid"),
    ],
)
def test_a_broken_file_is_named(directory: Path, file: str, content: str, what: str) -> None:
    """With what is wrong in it."""
    if file == "tokenizer_config.json":
        (directory / "chat_template.jinja").unlink(missing_ok=True)
    (directory / file).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=what):
        load_tokenizer(directory)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Where it was looked for and what would do."""
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tekken.json").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"convert its tekken\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"or a \.gguf file, but it is neither"):
        load_tokenizer(tmp_path / "tekken.json")
    with pytest.raises(ConfigError, match="it does not exist"):
        load_tokenizer(tmp_path / "none")
    second = tmp_path / "a-00002-of-00003.gguf"
    second.touch()
    with pytest.raises(ConfigError, match=r"a-00001-of-00003\.gguf is missing: .* first part"):
        load_tokenizer(second)


def test_of_a_gguf_file_only_the_header_is_needed(
    gguf_path: Path, tmp_path: Path, smollm: HFTokenizer
) -> None:
    """A file cut off behind its metadata, far ahead of the tensors, gives the same tokenizer."""
    with gguf_path.open("rb") as file:
        (tmp_path / "head.gguf").write_bytes(file.read(3_000_000))
    tokenizer = load_tokenizer(tmp_path / "head.gguf")
    assert tokenizer.encode_chat(CHAT) == smollm.encode_chat(CHAT)


def test_a_given_template_replaces_the_models_own(
    directory: Path, gguf_path: Path, tmp_path: Path
) -> None:
    """From a file or as text, also if the model's own is damaged."""
    file = tmp_path / "mine.jinja"
    file.write_text("ä{{ messages[0].content }}\n!")
    (directory / "chat_template.jinja").write_text("{% if %}")
    for path in (directory, gguf_path):
        for given, text in (
            (str(file), "ähi\n!"),
            (r"{{ messages[0].content }}<|im_end|>\n{{ '\\n' }}", "hi<|im_end|>\n\\n"),
        ):
            tokenizer = load_tokenizer(path, read_chat_template(given))
            token_ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
            assert token_ids == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("no/such.jinja", "no/such.jinja is neither a file nor a Jinja"),
        ("{% if %}" + "x" * 5000, "the chat template of --chat-template is not valid, line 1"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_a_given_template_that_is_not_one_is_refused(
    directory: Path, given: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_tokenizer(directory, read_chat_template(given))
