"""SentencePiece tokenizers, of GGUF files and of tokenizer.model, give sentencepiece's own ids."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.backends.text.gguf.tokenizer import tokenizer_from_gguf
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.text.tokenizer import HFTokenizer, SpecialTokens
from tokenmill.core.errors import ConfigError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

WORDS = ["the", " ", "  ", "dog", "token", "s", "Prompt", "é", "\n", "\n\n\n", "\t", "12", "."]
OTHERS = ["🙂", "日本", "qu", "<table>", "ſ", "   again", "e\u0301", "\u00a0", "x" * 9]
texts = st.lists(st.sampled_from([*WORDS, *OTHERS]), max_size=12).map("".join)

DEFAULTS: dict[str, Any] = {
    "model_type": "bpe",
    "vocab_size": 400,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
LLAMA: dict[str, Any] = {"add_dummy_prefix": True}
SQUEEZED: dict[str, Any] = {"add_dummy_prefix": True, "remove_extra_whitespaces": True}
GEMMA: dict[str, Any] = {
    "add_dummy_prefix": False,
    "user_defined_symbols": ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<table>"],
}


def train(corpus: list[str], **options: Any) -> Any:
    """Return a trained sentencepiece model with byte fallback, as Llama's and Gemma's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its generated bindings warn in some versions of Python
        import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=model,
        byte_fallback=True,
        minloglevel=2,
        **(DEFAULTS | options),
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def as_gguf(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata that llama.cpp's converter writes, with user-defined spaces as spaces."""
    ids = range(model.vocab_size())
    user_defined = options.get("user_defined_symbols", ())
    kinds = [
        UNKNOWN
        if model.is_unknown(i)
        else CONTROL
        if model.is_control(i)
        else BYTE
        if model.is_byte(i)
        else USER_DEFINED
        if model.id_to_piece(i) in user_defined
        else NORMAL
        for i in ids
    ]
    pieces = [
        model.id_to_piece(i).replace("▁", " ") if kinds[i] == USER_DEFINED else model.id_to_piece(i)
        for i in ids
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": options["add_dummy_prefix"],
        "tokenizer.ggml.remove_extra_whitespaces": options.get("remove_extra_whitespaces", False),
    }


@pytest.fixture(scope="module", params=["gguf", "tokenizer.model"])
def form(request: pytest.FixtureRequest) -> str:
    """The file that holds the vocabulary."""
    return str(request.param)


@pytest.fixture(scope="module", params=[LLAMA, SQUEEZED, GEMMA], ids=["llama", "squeezed", "gemma"])
def pair(
    request: pytest.FixtureRequest,
    form: str,
    corpus: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, HFTokenizer]:
    """A model of the sentencepiece package, and our tokenizer of the same vocabulary."""
    model = train(corpus, **request.param)
    if form == "gguf":
        return model, tokenizer_from_gguf(as_gguf(model, request.param), "x.gguf")
    path = tmp_path_factory.mktemp("spm")
    (path / "tokenizer.model").write_bytes(model.serialized_model_proto())
    return model, load_tokenizer(path)


def test_ids_are_those_of_sentencepiece(pair: tuple[Any, HFTokenizer]) -> None:
    """Prefix space, runs of spaces, user-defined symbols, bytes of unknown characters."""
    model, tokenizer = pair

    @given(texts)
    def check(text: str) -> None:
        assert tokenizer.encode(text, add_special_tokens=False) == model.encode(text), repr(text)

    check()


def test_text_is_that_of_sentencepiece(pair: tuple[Any, HFTokenizer]) -> None:
    """In one go; a stream keeps the prefix space, which belongs to the middle of a text."""
    model, tokenizer = pair

    @given(texts)
    def check(text: str) -> None:
        ids = model.encode(text)
        assert tokenizer.decode(ids) == model.decode(ids)
        detokenizer = tokenizer.detokenizer()
        streamed = "".join(detokenizer.add([i]) for i in ids) + detokenizer.finish()
        assert streamed in (model.decode(ids), " " + model.decode(ids))

    check()


@pytest.fixture(scope="module")
def trained(corpus: list[str]) -> bytes:
    """The bytes of a model file."""
    return bytes(train(corpus, **LLAMA).serialized_model_proto())


def test_a_model_file_gives_special_tokens_which_a_configuration_changes(
    trained: bytes, tmp_path: Path
) -> None:
    """BOS is added unless tokenizer_config.json says no; its added tokens are found whole."""
    (tmp_path / "tokenizer.model").write_bytes(trained)
    plain = load_tokenizer(tmp_path)
    assert plain.special_tokens == SpecialTokens(bos="<s>", eos="</s>", unk="<unk>")
    word = plain.encode("the")
    assert (word[0], plain.decode(word)) == (1, "the")
    added = {str(plain.vocab_size): {"content": "<new>", "special": True, "normalized": False}}
    config = {"add_bos_token": False, "eos_token": "<new>", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    changed = load_tokenizer(tmp_path)
    assert changed.special_tokens == SpecialTokens(bos="<s>", eos="<new>", unk="<unk>")
    assert changed.encode("the<new>") == [*word[1:], plain.vocab_size]


def test_a_damaged_model_file_is_refused(trained: bytes, tmp_path: Path) -> None:
    """Cut short or changed anywhere: an error of one line, or a tokenizer."""
    (tmp_path / "tokenizer.model").write_bytes(b"")
    refused = 0

    @given(st.integers(0, len(trained) - 1), st.integers(0, 255), st.booleans())
    def check(at: int, byte: int, cuts: bool) -> None:
        nonlocal refused
        damaged = trained[:at] if cuts else trained[:at] + bytes([byte]) + trained[at + 1 :]
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        try:
            load_tokenizer(tmp_path)
        except ConfigError as error:
            assert "\n" not in str(error)
            refused += 1

    check()
    assert refused > 10


def test_other_kinds_of_sentencepiece_models_are_refused(corpus: list[str], tmp_path: Path) -> None:
    unigram = train(corpus, model_type="unigram", vocab_size=300)
    (tmp_path / "tokenizer.model").write_bytes(unigram.serialized_model_proto())
    with pytest.raises(ConfigError, match="it is not a BPE model"):
        load_tokenizer(tmp_path)
    normalizing = train(corpus, normalization_rule_name="nfkc")
    (tmp_path / "tokenizer.model").write_bytes(normalizing.serialized_model_proto())
    with pytest.raises(ConfigError, match="cannot be rebuilt exactly"):
        load_tokenizer(tmp_path)
