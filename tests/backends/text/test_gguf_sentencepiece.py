"""SentencePiece tokenizers of GGUF files give the ids of the sentencepiece package itself."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.backends.text.gguf_tokenizer import tokenizer_from_gguf
from tokenmill.backends.text.tokenizer import HFTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

WORDS = ["the", " ", "  ", "dog", "token", "s", "Prompt", "é", "\n", "\n\n\n", "\t", "12", "."]
OTHERS = ["🙂", "日本", "qu", "<table>", "ſ", "   again", "e\u0301", "\u00a0", "x" * 9]
texts = st.lists(st.sampled_from([*WORDS, *OTHERS]), max_size=12).map("".join)

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
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        minloglevel=2,
        **({"remove_extra_whitespaces": False} | options),
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


@pytest.fixture(scope="module", params=[LLAMA, SQUEEZED, GEMMA], ids=["llama", "squeezed", "gemma"])
def pair(request: pytest.FixtureRequest, corpus: list[str]) -> tuple[Any, HFTokenizer]:
    """A model of the sentencepiece package, and our tokenizer of the same vocabulary."""
    model = train(corpus, **request.param)
    return model, tokenizer_from_gguf(as_gguf(model, request.param), "x.gguf")


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
