"""Variants of a tokenizer that read the text of control tokens as plain text."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Collection

from tokenizers import AddedToken, Tokenizer


def plain_text_tokenizer(backend: Tokenizer, control: Collection[str]) -> Tokenizer:
    """Return a tokenizer like `backend` that finds none of the `control` tokens in a text.

    The vocabulary is shared, not copied. Other added tokens are still found. All tokens are added
    in the order of their ids, so each one keeps its id.
    """
    plain = Tokenizer(backend.model)
    plain.normalizer = backend.normalizer
    plain.pre_tokenizer = backend.pre_tokenizer
    plain.post_processor = backend.post_processor
    added = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    for is_control, tokens in itertools.groupby(added, key=lambda token: token.content in control):
        add = plain.add_special_tokens if is_control else plain.add_tokens
        add([_with_special(token, is_control) for token in tokens])
    plain.encode_special_tokens = True
    return plain


def mid_text_tokenizer(plain: Tokenizer, control: Collection[str]) -> Tokenizer:
    """Return a tokenizer like `plain` for text that does not begin the sequence.

    It differs only for Metaspace with prepend_scheme "first", which adds a space before the first
    stretch of text and no other.
    """
    if plain.pre_tokenizer is None:
        return plain
    state = plain.pre_tokenizer.__getstate__()
    changed = re.sub(rb'("prepend_scheme":\s*)"first"', rb'\1"never"', state)
    if changed == state:
        return plain
    pre_tokenizer = copy.deepcopy(plain.pre_tokenizer)
    pre_tokenizer.__setstate__(changed)
    mid_text = plain_text_tokenizer(plain, control)
    mid_text.pre_tokenizer = pre_tokenizer
    return mid_text


def _with_special(token: AddedToken, special: bool) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )
