"""Tokenizers out of GGUF metadata: every supported kind, and clear words for the others."""

from __future__ import annotations

import json
import logging
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GemmaTokenizer

from tokenmill.backends.text.gguf import sentencepiece as gguf_sentencepiece
from tokenmill.backends.text.gguf.pre_tokenizers import PRE_TOKENIZATIONS
from tokenmill.backends.text.gguf.tokenizer import tokenizer_from_gguf
from tokenmill.backends.text.tokenizer import SpecialTokens
from tokenmill.core.errors import ConfigError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
Metadata = dict[str, Any]


def learn(
    corpus: list[str], pre_tokenizer: Any, alphabet: list[str]
) -> tuple[list[str], list[str]]:
    """Tokens in the order of their ids and merges, from a little text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    trained.train_from_iterator(corpus, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(merge) for merge in model["merges"]]


@pytest.fixture
def byte_level(corpus: list[str]) -> Metadata:
    """Byte-level BPE with all 256 bytes, two control tokens and a user-defined one."""
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens, merges = learn(corpus, pre_tokenizer, pre_tokenizers.ByteLevel.alphabet())
    added = ["<|bos|>", "<|eos|>", "<think>"]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *added],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [CONTROL, CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }


@pytest.fixture
def sentencepiece(corpus: list[str]) -> Metadata:
    """Metadata as of Llama 2: scores, byte tokens, <unk>, <s>, </s>, no merges."""
    learned, _ = learn(corpus, pre_tokenizers.Metaspace(), [])
    first = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    learned.sort(key=lambda token: len(token) == 1)  # characters last, as SentencePiece puts them
    tokens = [*first, *bytes_, *learned, "<|user|>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(learned), USER_DEFINED]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(len(learned) + 1)],
        "tokenizer.ggml.token_type": types,
    }


TEXTS = ["The dog's 12 tokens, 1234!\n\n  HELLO", "naïve 日本語 🙂", "  a  b\t\n", "don't WE'LL"]


@pytest.mark.parametrize("name", PRE_TOKENIZATIONS)
def test_every_pre_tokenizer_keeps_the_text(byte_level: Metadata, name: str) -> None:
    """Whatever the split, the tokens of a text decode to it."""
    tokenizer = tokenizer_from_gguf(byte_level | {"tokenizer.ggml.pre": name}, "x.gguf")
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["ab", "Ġ123", "!", "Ġ", "Ġ45"]),
        ("smollm", ["ab", "Ġ", "1", "2", "3", "!", "ĠĠ", "4", "5"]),
        ("llama-bpe", ["ab", "Ġ", "123", "!", "Ġ", "Ġ", "45"]),
        ("qwen2", ["ab", "Ġ", "1", "2", "3", "!", "Ġ", "Ġ", "4", "5"]),
        ("tekken", ["ab", "Ġ", "1", "2", "3", "!", "Ġ", "Ġ", "4", "5"]),
        ("falcon", ["ab", "Ġ", "123", "!", "Ġ", "Ġ", "45"]),
        ("deepseek-llm", ["ab", "Ġ", "1", "2", "3", "!", "ĠĠ", "4", "5"]),
        ("deepseek-v3", ["ab", "Ġ", "123", "!", "ĠĠ", "45"]),
    ],
)
def test_pre_tokenizers_split_digits_and_spaces_each_in_its_way(
    name: str, pieces: list[str]
) -> None:
    """What the models were trained with."""
    split = PRE_TOKENIZATIONS[name].pre_tokenizer().pre_tokenize_str("ab 123!  45")
    assert [piece for piece, _ in split] == pieces


def test_composed_characters_are_one_for_models_that_normalize(byte_level: Metadata) -> None:
    """Qwen's own tokenizer applies NFC; a GGUF does not say so."""
    qwen = tokenizer_from_gguf(byte_level | {"tokenizer.ggml.pre": "qwen2"}, "x.gguf")
    assert qwen.encode("e\u0301") == qwen.encode("é")


def test_whole_pieces_win_over_merges_where_the_model_says_so(byte_level: Metadata) -> None:
    """A word in the vocabulary that no merge makes, as in Llama 3."""
    changed = byte_level | {"tokenizer.ggml.merges": byte_level["tokenizer.ggml.merges"][:1]}
    word = changed["tokenizer.ggml.tokens"].index("Ġthe")
    llama3 = tokenizer_from_gguf(changed | {"tokenizer.ggml.pre": "llama-bpe"}, "x.gguf")
    smaug = tokenizer_from_gguf(changed | {"tokenizer.ggml.pre": "smaug-bpe"}, "x.gguf")
    assert llama3.encode(" the", add_special_tokens=False) == [word]
    assert smaug.encode(" the", add_special_tokens=False) != [word]


@pytest.mark.parametrize(
    ("name", "flags", "adds"),
    [
        ("gpt-2", {}, (False, False)),
        ("llama-bpe", {}, (True, False)),
        ("llama-bpe", {"add_bos_token": False}, (False, False)),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (True, True)),
    ],
)
def test_bos_and_eos_are_added_as_the_file_or_else_the_model_kind_says(
    byte_level: Metadata, name: str, flags: dict[str, bool], adds: tuple[bool, bool]
) -> None:
    """Only with add_special_tokens."""
    keys = {f"tokenizer.ggml.{key}": value for key, value in flags.items()}
    tokenizer = tokenizer_from_gguf(byte_level | keys | {"tokenizer.ggml.pre": name}, "x.gguf")
    expected = "<|bos|>" * adds[0] + "the dog" + "<|eos|>" * adds[1]
    assert tokenizer.encode("the dog") == tokenizer.encode(expected, add_special_tokens=False)


def test_control_tokens_are_special_and_user_defined_ones_are_not(byte_level: Metadata) -> None:
    """Both are found whole in a text; only the first are skipped in decoding."""
    tokenizer = tokenizer_from_gguf(byte_level, "x.gguf")
    ids = tokenizer.encode("<|bos|><think>")
    assert ids == [tokenizer.vocab_size - 3, tokenizer.vocab_size - 1]
    assert tokenizer.decode(ids) == "<think>"


def test_an_unstated_pre_tokenizer_is_taken_as_gpt2_with_a_warning(
    byte_level: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    """Old files do not say; the user is told."""
    expected = tokenizer_from_gguf(byte_level, "x.gguf").encode(TEXTS[0])
    del byte_level["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING, logger="tokenmill"):
        assert tokenizer_from_gguf(byte_level, "x.gguf").encode(TEXTS[0]) == expected
    assert "pre_tokenizer_not_stated" in caplog.text


def spm_reference(text: str, metadata: Metadata) -> list[int]:
    """SentencePiece's own way: join the neighbours whose result scores best, the leftmost first."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    score = {token: scores[i] for i, token in enumerate(tokens) if i > 258}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(score[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in score]
        if not pairs:
            break
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [tokens.index(symbol)] if symbol in score else [3 + byte for byte in symbol.encode()]
    return ids


def test_sentencepiece_encodes_as_sentencepiece_does(sentencepiece: Metadata) -> None:
    """Merges follow from scores; unknown characters become bytes."""
    tokenizer = tokenizer_from_gguf(sentencepiece, "x.gguf")

    @given(
        st.lists(
            st.sampled_from(
                ["the", " ", "dog", "token", "s", "prompt", "é", "\n", "qu", ".", "🙂"]
            ),
            max_size=12,
        )
    )
    def check(words: list[str]) -> None:
        text = "".join(words)
        assert tokenizer.encode(text, add_special_tokens=False) == spm_reference(
            text, sentencepiece
        )
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_sentencepiece_adds_bos_unless_told_not_to(sentencepiece: Metadata) -> None:
    """Its ids for unknown, BOS and EOS need not be stated."""
    tokenizer = tokenizer_from_gguf(sentencepiece, "x.gguf")
    assert tokenizer.special_tokens == SpecialTokens(unk="<unk>", bos="<s>", eos="</s>")
    assert tokenizer.encode("dog")[0] == 1
    bare = tokenizer_from_gguf(sentencepiece | {"tokenizer.ggml.add_bos_token": False}, "x.gguf")
    assert bare.encode("dog") == tokenizer.encode("dog")[1:]


def test_sentencepiece_space_prefix_can_be_switched_off(sentencepiece: Metadata) -> None:
    """And what it would have stripped in decoding is then kept."""
    tokenizer = tokenizer_from_gguf(
        sentencepiece | {"tokenizer.ggml.add_space_prefix": False}, "x.gguf"
    )
    assert tokenizer.decode(tokenizer.encode(" dog")) == " dog"
    assert tokenizer.decode(tokenizer.encode("dog")) == "dog"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5', supported: gpt2"),
        ({"tokenizer.ggml.model": None}, "no tokenizer.ggml.model, supported"),
        ({"tokenizer.ggml.model": 3}, "tokenizer.ggml.model 3, supported"),
        ({"tokenizer.ggml.pre": "qwen22"}, "not supported. Did you mean 'qwen2'.*--tokenizer"),
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": "abc"}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab', which is not two tokens"),
        ({"tokenizer.ggml.merges": ["nope nope"]}, "merges does not fit"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "a number for each"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "same token twice: 'a'"),
        ({"tokenizer.ggml.tokens": ["a" * 5000]}, "a token of 5000 characters"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id is 1000000, but it has"),
        ({"tokenizer.ggml.eos_token_id": -7}, "eos_token_id is -7, but it has"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "must be an integer"),
        ({"tokenizer.ggml.add_bos_token": 1}, "must be true or false"),
        ({"tokenizer.chat_template": "{% if"}, "chat template of x.gguf is not valid"),
        ({"tokenizer.chat_template": 1}, "must be a string"),
    ],
)
def test_what_cannot_be_used_is_named(byte_level: Metadata, change: Metadata, what: str) -> None:
    """With the file, the key and what is supported."""
    changed = {key: value for key, value in (byte_level | change).items() if value is not None}
    with pytest.raises(ConfigError, match=what) as caught:
        tokenizer_from_gguf(changed, "x.gguf")
    assert "x.gguf" in str(caught.value)


@pytest.mark.parametrize("wrong", [7, -1, 2.5, math.nan])
def test_a_token_of_unknown_type_is_refused(byte_level: Metadata, wrong: float) -> None:
    types = [wrong, *byte_level["tokenizer.ggml.token_type"][1:]]
    with pytest.raises(ConfigError, match=r"token_type has .*, which is not 0 to 6"):
        tokenizer_from_gguf(byte_level | {"tokenizer.ggml.token_type": types}, "x.gguf")


def test_a_control_token_that_is_much_too_long_is_refused(byte_level: Metadata) -> None:
    """Control tokens become one regular expression, whose size they would determine."""
    tokens = byte_level["tokenizer.ggml.tokens"]
    tokens = [*tokens[:-2], "<" * 300, tokens[-1]]
    with pytest.raises(ConfigError, match=r"x.gguf has a control token of 300 characters"):
        tokenizer_from_gguf(byte_level | {"tokenizer.ggml.tokens": tokens}, "x.gguf")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tokenizer.ggml.precompiled_charsmap": [1]}, "cannot be rebuilt exactly"),
        ({"tokenizer.ggml.scores": None}, "no tokenizer.ggml.scores"),
        ({"tokenizer.ggml.scores": [0.0]}, "a number for each"),
        ({"tokenizer.ggml.scores": [math.nan] * 4000}, "a number for each"),
    ],
)
def test_a_sentencepiece_that_cannot_be_exact_is_refused(
    sentencepiece: Metadata, change: Metadata, what: str
) -> None:
    """Rather than tokens that are nearly right."""
    changed = {key: value for key, value in (sentencepiece | change).items() if value is not None}
    with pytest.raises(ConfigError, match=what):
        tokenizer_from_gguf(changed, "x.gguf")


def test_a_vocabulary_with_too_many_merges_is_refused(
    sentencepiece: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run of a letter can be built from two shorter runs in many ways."""
    monkeypatch.setattr(gguf_sentencepiece, "_MAX_MERGES", 1000)
    tokens = [*sentencepiece["tokenizer.ggml.tokens"][:259], *("a" * n for n in range(1, 60))]
    hostile = sentencepiece | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": sentencepiece["tokenizer.ggml.token_type"][:259] + [1] * 59,
    }
    with pytest.raises(ConfigError, match="can be merged from each other in more than 1000 ways"):
        tokenizer_from_gguf(hostile, "x.gguf")


def test_scores_must_be_finite(sentencepiece: Metadata) -> None:
    """Merges are sorted by them."""
    scores = [*sentencepiece["tokenizer.ggml.scores"][:-1], math.nan]
    with pytest.raises(ConfigError, match="not a finite number"):
        tokenizer_from_gguf(sentencepiece | {"tokenizer.ggml.scores": scores}, "x.gguf")


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_an_id_that_stands_for_no_token_is_not_used(byte_level: Metadata, none: int) -> None:
    """Some converters write it; empty tokens get a name of their own."""
    tokens = [*byte_level["tokenizer.ggml.tokens"][:-1], ""]
    changed = byte_level | {"tokenizer.ggml.eos_token_id": none, "tokenizer.ggml.tokens": tokens}
    tokenizer = tokenizer_from_gguf(changed, "x.gguf")
    assert tokenizer.special_tokens.eos is None
    assert tokenizer.vocab_size == len(tokens)


def test_control_tokens_of_phi3_remove_the_whitespace_after_them(sentencepiece: Metadata) -> None:
    """Its tokenizer.json says so, a GGUF file does not; BOS and the text's end keep it."""
    types = [*sentencepiece["tokenizer.ggml.token_type"][:-1], CONTROL]
    llama = sentencepiece | {"tokenizer.ggml.token_type": types}
    phi3 = llama | {"general.architecture": "phi3"}
    text = "<|user|> \n dog"
    stripped = tokenizer_from_gguf(phi3, "x.gguf").encode(text)
    assert stripped == tokenizer_from_gguf(llama, "x.gguf").encode("<|user|>dog")
    assert stripped != tokenizer_from_gguf(llama, "x.gguf").encode(text)
    with_bos = tokenizer_from_gguf(phi3, "x.gguf").encode("<s> dog", add_special_tokens=False)
    assert with_bos == tokenizer_from_gguf(llama, "x.gguf").encode(" dog")


def test_mistral_has_a_prefix_space_only_at_the_start_of_the_text(sentencepiece: Metadata) -> None:
    """From the vocabulary on that has [INST] as a control token."""
    tokens = sentencepiece["tokenizer.ggml.tokens"]
    word, end = tokens.index("▁the"), len(tokens) - 1
    mistral = tokenizer_from_gguf(_with_control_token(sentencepiece, "[INST]"), "x.gguf")
    llama = tokenizer_from_gguf(_with_control_token(sentencepiece, "[/IN]"), "x.gguf")
    assert mistral.encode("the[INST] the") == [1, word, end, word]
    assert llama.encode("the[/IN]the") == [1, word, end, word]
    assert mistral.encode("the[INST]the") != [1, word, end, word]
    assert mistral.decode(mistral.encode("the[INST]the[INST] the")) == "thethe the"


def _with_control_token(metadata: Metadata, token: str) -> Metadata:
    return metadata | {
        "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"][:-1], token],
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"][:-1], CONTROL],
    }


@pytest.fixture
def gemma4(corpus: list[str]) -> Metadata:
    """Merges over characters with "▁" for a space, byte tokens, and words before their parts."""
    learned, merges = learn(corpus, pre_tokenizers.Metaspace(prepend_scheme="never"), ["\n"])
    first = ["<pad>", "<eos>", "<bos>", "<unk>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "general.architecture": "gemma4",
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [*first, *bytes_, *learned, "<turn|>"],
        "tokenizer.ggml.token_type": [
            *[CONTROL] * 4,
            *[BYTE] * 256,
            *[NORMAL] * len(learned),
            CONTROL,
        ],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": False,
    }


def test_gemma4_gives_the_tokens_of_transformers(gemma4: Metadata) -> None:
    """Without a prefix space, with bytes for unknown characters, and with BOS in any case."""
    tokens = gemma4["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in gemma4["tokenizer.ggml.merges"]]
    oracle = GemmaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    tokenizer = tokenizer_from_gguf(gemma4, "x.gguf")
    for text in [*TEXTS, "the dog", " the  dog\n\nagain"]:
        expected = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        assert tokenizer.encode(text) == [2, *expected]
        assert tokenizer.decode(expected) == text
