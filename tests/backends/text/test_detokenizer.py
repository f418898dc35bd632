"""Detokenizing piece by piece gives the text of the whole, at once and for any tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tokenmill.backends.text.detokenizer import WindowDetokenizer
from tokenmill.backends.text.token_table import build_token_table
from tokenmill.backends.text.tokenizer import HFTokenizer

chunk_sizes = st.lists(st.integers(1, 4), max_size=40)


def stream(tokenizer: HFTokenizer, ids: list[int], sizes: list[int], skip: bool) -> list[str]:
    """What each add returned, then finish."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    pieces, at = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(detokenizer.add(ids[at : at + size]))
        at += size
    return [*pieces, detokenizer.finish()]


def ids_of(tokenizer: HFTokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids; partial bytes and special tokens, which are rare in a vocabulary, come often."""
    rare = [i for i in range(tokenizer.vocab_size) if _is_partial(tokenizer.token_bytes(i))]
    return st.lists(
        st.one_of(
            st.sampled_from(rare), st.integers(0, 20), st.integers(0, tokenizer.vocab_size + 5)
        ),
        max_size=40,
    )


def _is_partial(data: bytes) -> bool:
    return "\ufffd" in data.decode("utf-8", "replace")


def test_byte_level_pieces_add_up_to_the_decoded_whole(smollm: HFTokenizer, oracle: Any) -> None:
    """Any ids, any cutting, special tokens shown or skipped: equal to the library's own decode."""
    backend = oracle.backend_tokenizer

    @given(ids=ids_of(smollm), sizes=chunk_sizes, skip=st.booleans())
    def check(ids: list[int], sizes: list[int], skip: bool) -> None:
        pieces = stream(smollm, ids, sizes, skip)
        whole = backend.decode(ids, skip_special_tokens=skip)
        assert "".join(pieces) == whole == smollm.decode(ids, skip_special_tokens=skip)

    check()


def test_nothing_is_held_back_but_an_incomplete_character(smollm: HFTokenizer) -> None:
    """After every token, the bytes that are not out yet are the beginning of one character."""

    @given(ids=ids_of(smollm))
    @example(ids=[48138, 111])
    def check(ids: list[int]) -> None:
        detokenizer = smollm.detokenizer(skip_special_tokens=False)
        sent, data = "", b""
        for token_id in ids:
            sent += detokenizer.add([token_id])
            data += smollm.token_bytes(token_id)
            rest = data.decode("utf-8", "replace").removeprefix(sent)
            # Python waits for the third byte of a surrogate, too, though that is no character.
            begins_surrogate = data[-2:-1] == b"\xed" and 0xA0 <= data[-1] <= 0xBF
            assert rest in ("", "\ufffd") or (begins_surrogate and rest == "\ufffd\ufffd")

    check()


def test_a_character_of_several_tokens_comes_out_whole(smollm: HFTokenizer) -> None:
    """No U+FFFD is ever sent for it."""
    ids = smollm.encode("🙂日")
    pieces = stream(smollm, ids, [1] * len(ids), True)
    assert [piece for piece in pieces if piece] == ["🙂", "日"]


def test_finish_shows_a_character_that_stayed_incomplete(smollm: HFTokenizer) -> None:
    """As decode does for the same tokens."""
    ids = smollm.encode("🙂")[:-1]
    assert stream(smollm, ids, [], True)[-1] == "\ufffd" == smollm.decode(ids)


def test_sentencepiece_pieces_add_up_to_the_text_after_a_prompt(sentencepiece: HFTokenizer) -> None:
    """decode(prompt + tokens) without decode(prompt): the space before the first word is kept."""
    prompt = sentencepiece.encode("the")

    @given(ids=ids_of(sentencepiece), sizes=chunk_sizes, skip=st.booleans())
    def check(ids: list[int], sizes: list[int], skip: bool) -> None:
        whole = sentencepiece.decode([*prompt, *ids], skip_special_tokens=skip)
        assert "".join(stream(sentencepiece, ids, sizes, skip)) == whole.removeprefix("the")

    check()
    assert sentencepiece.detokenizer().add(sentencepiece.encode("the dog")[-1:]) != ""


def test_byte_fallback_tokens_stream_character_by_character(sentencepiece: HFTokenizer) -> None:
    """Also when none of the text is in the vocabulary."""
    ids = sentencepiece.encode("日本", add_special_tokens=False)
    assert [piece for piece in stream(sentencepiece, ids, [1] * len(ids), True) if piece][-2:] == [
        "日",
        "本",
    ]


@pytest.fixture(scope="module")
def wordpiece_backend() -> Tokenizer:
    """Words with "##" for continuations: a decoder that looks at the neighbours."""
    words = ["[UNK]", "the", "dog", "##s", "bark", "##ing", ".", "!", "n't", "do"]
    backend = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.decoder = decoders.WordPiece(cleanup=True)
    backend.add_special_tokens(["[UNK]"])
    return backend


@pytest.fixture(scope="module")
def wordpiece(wordpiece_backend: Tokenizer) -> HFTokenizer:
    """The tokenizer on it."""
    return HFTokenizer(wordpiece_backend)


@pytest.fixture(scope="module")
def suffixed() -> HFTokenizer:
    """Words that end in "</w>", as in the first GPT."""
    words = ["the</w>", "do", "dog</w>", "s</w>", ".</w>"]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = decoders.BPEDecoder("</w>")
    return HFTokenizer(backend)


@pytest.mark.parametrize("name", ["wordpiece", "suffixed"])
def test_other_decoders_add_up_to_the_text_after_a_prompt(
    name: str, request: pytest.FixtureRequest
) -> None:
    """The generic way, for decoders in which a token's text depends on its neighbours."""
    tokenizer: HFTokenizer = request.getfixturevalue(name)
    first = next(i for i in range(tokenizer.vocab_size) if tokenizer.decode([i]))

    @given(ids=st.lists(st.integers(0, tokenizer.vocab_size), max_size=20), sizes=chunk_sizes)
    def check(ids: list[int], sizes: list[int]) -> None:
        whole = tokenizer.decode([first, *ids])
        assert tokenizer.decode([first]) + "".join(stream(tokenizer, ids, sizes, True)) == whole

    check()


def test_words_of_other_decoders_have_bytes(wordpiece: HFTokenizer) -> None:
    """A word carries the space before it, a continuation does not."""
    assert (wordpiece.token_bytes(2), wordpiece.token_bytes(3)) == (b" dog", b"s")


class CountingBackend:
    """Passes decode on and notes how many tokens it was given."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.most = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.most = max(self.most, len(ids))
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)


def test_work_per_token_does_not_grow_with_the_length(wordpiece_backend: Tokenizer) -> None:
    """However long the text, no more than a few tokens are decoded again for one."""
    table = build_token_table(wordpiece_backend, "test")
    backend: Any = CountingBackend(wordpiece_backend)
    WindowDetokenizer(backend, table, skip_special_tokens=True).add([1, 2, 3] * 200)
    assert backend.most <= 5
