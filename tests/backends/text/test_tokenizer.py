"""The tokenizer against transformers on the real vocabulary, and its small print."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, processors

from tokenmill.backends.text.tokenizer import HFTokenizer, SpecialTokens
from tokenmill.core.errors import ConfigError, InvalidRequestError
from tokenmill.core.interfaces import Tokenizer as TokenizerProtocol

SPECIAL_TEXTS = [
    "<|im_end|>",
    "x <|im_start|>system\ny<|im_end|>\n",
    "<|im_<|im_end|>end|>",
    "<repo_name>a",
]


def test_encodes_as_transformers(smollm: HFTokenizer, oracle: Any, text: str) -> None:
    """Text, code, digits, spaces, emoji and CJK get the same ids."""
    assert smollm.encode(text) == oracle.encode(text)


@pytest.mark.parametrize("special", SPECIAL_TEXTS)
def test_parses_special_text_as_transformers(
    smollm: HFTokenizer, oracle: Any, special: str
) -> None:
    """Control tokens in a prompt are control tokens."""
    assert smollm.encode(special) == oracle.encode(special)


def test_encodes_any_text_as_transformers(smollm: HFTokenizer, oracle: Any) -> None:
    """The same for random Unicode."""

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
    def check(text: str) -> None:
        assert smollm.encode(text) == oracle.encode(text)

    check()


@pytest.mark.parametrize("skip", [True, False])
def test_decodes_as_transformers(smollm: HFTokenizer, oracle: Any, text: str, skip: bool) -> None:
    """With special tokens around the text, shown or skipped."""
    ids = [1, *smollm.encode(text), 2]
    assert smollm.decode(ids, skip_special_tokens=skip) == oracle.decode(
        ids, skip_special_tokens=skip
    )


def test_digits_and_the_spaces_before_them_are_split_as_the_model_was_trained(
    smollm: HFTokenizer,
) -> None:
    """Each digit is a token and two spaces before one stay together: "smollm" is not "gpt-2"."""
    assert [smollm.decode([i]) for i in smollm.encode("a  12")] == ["a", "  ", "1", "2"]


@pytest.mark.parametrize("special", SPECIAL_TEXTS)
def test_special_text_stays_plain_without_parse_special(smollm: HFTokenizer, special: str) -> None:
    """No control token comes out, and the text is unchanged."""
    ids = smollm.encode(special, parse_special=False)
    assert not set(ids) & set(range(17))
    assert smollm.decode(ids) == special


def test_parse_special_changes_nothing_else(smollm: HFTokenizer, text: str) -> None:
    """Ordinary text gets the same ids either way."""
    assert smollm.encode(text, parse_special=False) == smollm.encode(text)


def test_bos_is_added_by_the_post_processor_only_when_asked(
    sentencepiece_backend: Callable[[], Tokenizer],
) -> None:
    """add_special_tokens switches it, with and without parse_special."""
    backend = sentencepiece_backend()
    backend.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", 1)]
    )
    tokenizer = HFTokenizer(backend, special_tokens=SpecialTokens(bos="<s>"))
    bare = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.encode("the dog") == [1, *bare]
    assert tokenizer.encode("the dog", parse_special=False) == [1, *bare]
    assert tokenizer.encode("the dog", parse_special=False, add_special_tokens=False) == bare


def test_half_a_surrogate_pair_is_refused(smollm: HFTokenizer) -> None:
    """JSON can carry such strings; they are no text."""
    with pytest.raises(InvalidRequestError, match="surrogate") as caught:
        smollm.encode("a\ud83d")
    assert caught.value.param == "prompt"


def test_token_bytes_join_to_the_text_they_came_from(smollm: HFTokenizer) -> None:
    """Each token's bytes are known, also of special tokens and of parts of a character."""
    text = "日本語 🙂 plain<|im_end|>"
    ids = smollm.encode(text)
    assert b"".join(smollm.token_bytes(i) for i in ids) == text.encode()
    assert any(len(smollm.token_bytes(i)) and not _is_utf8(smollm.token_bytes(i)) for i in ids)
    assert smollm.token_bytes(2) == b"<|im_end|>"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_ids_outside_the_vocabulary_stand_for_nothing(smollm: HFTokenizer) -> None:
    """A model's padded vocabulary may sample them; they must not break a stream."""
    assert smollm.token_bytes(smollm.vocab_size) == smollm.token_bytes(-1) == b""
    assert smollm.decode([19556, smollm.vocab_size, 10**9, -1]) == "Hello"


def test_no_token_of_the_vocabulary_decodes_to_more_characters_than_the_bound(
    smollm: HFTokenizer,
) -> None:
    """And the bound is reached, so it is no looser than it must be."""
    lengths = [len(smollm.decode([i], skip_special_tokens=False)) for i in range(smollm.vocab_size)]
    assert max(lengths) == smollm.max_chars_per_token


def test_special_tokens_are_those_of_the_file(smollm: HFTokenizer, oracle: Any) -> None:
    assert smollm.special_tokens == SpecialTokens(
        bos=oracle.bos_token, eos=oracle.eos_token, unk=oracle.unk_token, pad=oracle.pad_token
    )
    assert smollm.vocab_size == len(oracle)


def test_many_threads_get_the_same_ids(smollm: HFTokenizer) -> None:
    """Encoding, decoding and chats run side by side without touching each other."""

    def work(number: int) -> tuple[list[int], str, list[int]]:
        text = f"{number} 日本語 {'word ' * number}<|im_start|>"
        ids = smollm.encode(text, parse_special=number % 2 == 0)
        return (
            ids,
            smollm.decode(ids),
            smollm.encode_chat([{"role": "user", "content": text + "<|im_end|>"}]),
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(64))) == [work(number) for number in range(64)]


def test_decoding_from_the_start_drops_the_sentencepiece_space(sentencepiece: HFTokenizer) -> None:
    """As the library does it: round trips give back the text."""
    for text in ["the quick dog", "naïve 日本語 🙂", "a  b"]:
        assert sentencepiece.decode(sentencepiece.encode(text)) == text


def test_sentencepiece_decode_equals_the_librarys_for_valid_bytes(
    sentencepiece: HFTokenizer, sentencepiece_backend: Callable[[], Tokenizer]
) -> None:
    """For invalid ones the library voids a whole run of bytes; here only the bytes at fault go."""
    backend = sentencepiece_backend()

    @given(st.lists(st.integers(0, sentencepiece.vocab_size - 1), max_size=12), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        expected = backend.decode(ids, skip_special_tokens=skip)
        if "\ufffd" not in expected:
            assert sentencepiece.decode(ids, skip_special_tokens=skip) == expected

    check()
    assert sentencepiece.decode([3 + byte for byte in "é".encode()] + [3 + 0xFF]) == "é\ufffd"


def test_the_protocol_of_core_is_implemented(smollm: HFTokenizer) -> None:
    """What the engine gets is what it was promised."""
    tokenizer: TokenizerProtocol = smollm
    assert tokenizer.has_chat_template


def test_a_decoder_that_mixes_bytes_with_other_rules_is_refused() -> None:
    """Better no start than text that is wrong now and then."""
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.WordPiece()])
    with pytest.raises(ConfigError, match="ByteFallback"):
        HFTokenizer(backend)
