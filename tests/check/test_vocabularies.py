"""The tokenizers of llama.cpp's vocabulary files give the tokens that it expects of them.

It took the expected tokens from the models' own tokenizers in transformers.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.gguf.file import read_gguf_metadata
from tokenmill.backends.weights.gguf.stop_tokens import stop_token_ids
from tokenmill.core.errors import ConfigError

from .llama_cpp import VERSION_FILE, llama_cpp_source

pytestmark = pytest.mark.depends_on(VERSION_FILE)

STOPS = {
    "aquila": ["<|endoftext|>"],
    "baichuan": ["</s>"],
    "command-r": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek-coder": ["<｜end▁of▁sentence｜>"],
    "deepseek-llm": ["<｜end▁of▁sentence｜>"],
    "falcon": ["<|endoftext|>"],
    "gemma-4": ["<eos>", "<turn|>", "<|tool_response>"],
    "gpt-2": ["<|endoftext|>"],
    "gpt-neox": ["<|endoftext|>"],
    "llama-bpe": ["<|end_of_text|>", "<|eot_id|>"],
    "llama-spm": ["</s>"],
    "mpt": ["<|endoftext|>"],
    "phi-3": ["<|endoftext|>", "<|end|>"],
    "qwen2": ["<|endoftext|>", "<|im_end|>"],
    "qwen35": ["<|endoftext|>", "<|im_end|>"],
    "refact": ["<|endoftext|>"],
    "starcoder": ["<|endoftext|>"],
}
"""The vocabularies of decoders, with the tokens at which generation ends."""

ENCODERS = {"bert-bge": "bert", "nomic-bert-moe": "t5"}
"""The vocabularies of models that generate no text."""

CLASSES = {
    "command-r": "CohereTokenizer",
    "deepseek-llm": "TokenizersBackend",
    "falcon": "TokenizersBackend",
    "gemma-4": "GemmaTokenizer",
    "gpt-2": "GPT2Tokenizer",
    "llama-bpe": "TokenizersBackend",
    "llama-spm": "TokenizersBackend",
    "mpt": "GPTNeoXTokenizer",
    "phi-3": "TokenizersBackend",
    "qwen2": "Qwen2Tokenizer",
    "starcoder": "TokenizersBackend",
}
"""transformers' classes; LlamaTokenizer no longer gives the expected tokens of its vocabulary."""

WITHOUT_EXPECTED_TOKENS = {"aquila", "baichuan", "gpt-neox"}


def path_of(name: str) -> Path:
    return llama_cpp_source() / "models" / f"ggml-vocab-{name}.gguf"


def expected_tokens(name: str) -> Iterator[tuple[str, list[int]]]:
    separator = "\n__ggml_vocab_test__\n"
    texts = path_of(name).with_suffix(".gguf.inp").read_bytes().decode().removesuffix(separator)
    lines = path_of(name).with_suffix(".gguf.out").read_text().splitlines()
    pairs = zip(texts.split(separator), lines, strict=True)
    return ((text, [int(number) for number in line.split()]) for text, line in pairs)


@pytest.mark.parametrize("name", sorted(STOPS.keys() - WITHOUT_EXPECTED_TOKENS))
def test_texts_become_the_expected_tokens_and_tokens_the_text(name: str) -> None:
    """In one go and streamed; control tokens may be parsed or not, as no text has any."""
    tokenizer = load_tokenizer(path_of(name))
    for text, expected in expected_tokens(name):
        if name == "qwen35" and not unicodedata.is_normalized("NFC", text):
            continue  # the file's own tokens are those without NFC, which transformers applies
        for parses in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parses)
            assert ids == expected, text
        assert tokenizer.decode(expected) == text
        detokenizer = tokenizer.detokenizer()
        streamed = "".join(detokenizer.add([i]) for i in expected) + detokenizer.finish()
        assert streamed in (text, " " + text)


def test_qwen35_composes_characters_as_transformers_does() -> None:
    """llama.cpp does not, so its tokens of such texts are not the model's."""
    metadata = read_gguf_metadata(path_of("qwen35"))
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    oracle = Qwen3_5Tokenizer(vocab=vocab, merges=merges)
    tokenizer = load_tokenizer(path_of("qwen35"))
    decomposed = 0
    for text, _ in expected_tokens("qwen35"):
        decomposed += not unicodedata.is_normalized("NFC", text)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text, add_special_tokens=False), text
    assert decomposed == 3


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_directory_gives_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    """The same vocabulary as tokenizer.json, with control tokens in the texts and around them."""
    gguf = load_tokenizer(path_of(name))
    gguf.save(tmp_path / "tokenizer.json")
    roles = {key: text for key, text in gguf.special_tokens.as_variables().items() if text}
    config = roles | {"tokenizer_class": CLASSES[name]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    oracle, tokenizer = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    eos = gguf.special_tokens.eos or ""
    for text, _ in expected_tokens(name):
        for whole in (text, f"{eos}{text}", f"{text}{eos} {text}"):
            for adds in (True, False):
                ids = tokenizer.encode(whole, add_special_tokens=adds)
                assert ids == oracle.encode(whole, add_special_tokens=adds), whole
                assert gguf.encode(whole, add_special_tokens=adds) == ids, whole


@pytest.mark.parametrize("name", sorted(STOPS))
def test_generation_ends_at_the_expected_tokens(name: str) -> None:
    metadata = read_gguf_metadata(path_of(name))
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[index] for index in stop_token_ids(metadata)] == STOPS[name]


@pytest.mark.parametrize("name", sorted(WITHOUT_EXPECTED_TOKENS))
def test_vocabularies_without_expected_tokens_keep_the_text(name: str) -> None:
    tokenizer = load_tokenizer(path_of(name))
    for text, _ in expected_tokens("llama-spm"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_the_tokenizers_of_encoders_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"tokenizer.ggml.model '{ENCODERS[name]}', supported"):
        load_tokenizer(path_of(name))


def test_every_vocabulary_is_checked() -> None:
    found = {path.stem.removeprefix("ggml-vocab-") for path in path_of("mpt").parent.glob("*.gguf")}
    assert found == STOPS.keys() | ENCODERS.keys()
