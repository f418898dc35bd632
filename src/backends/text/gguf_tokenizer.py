"""Builds a tokenizer from the metadata of a GGUF file.

`tokenizer.ggml.model` names the algorithm. "gpt2" is byte-level BPE with merges. "llama" is
SentencePiece's BPE, whose merges are computed from the scores of its pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from ...core.errors import ConfigError
from ...core.log import get_logger
from ..weights.fields import Fields
from .gguf_pre_tokenizers import find_pre_tokenization
from .tokenizer import HFTokenizer, SpecialTokens

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_logger = get_logger("text")


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> HFTokenizer:
    """Build a GGUF file's tokenizer with its chat template; `source` is the file, for errors.

    Raises ConfigError when a part is missing, or cannot be rebuilt exactly.
    """
    fields = _Fields(metadata, source)
    model = fields.values.optional_text("tokenizer.ggml.model")
    if model == "gpt2":
        backend, adds_bos = _byte_level_bpe(fields)
    elif model == "llama":
        backend, adds_bos = _sentencepiece_bpe(fields)
    else:
        found = "no tokenizer.ggml.model" if model is None else f"tokenizer.ggml.model {model!r}"
        raise ConfigError(
            f"{source} has {found}, supported are gpt2 (byte-level BPE) and llama (SentencePiece "
            "BPE): set --tokenizer to a directory with a tokenizer.json"
        )
    special_tokens = _special_tokens(fields, is_sentencepiece=model == "llama")
    backend.post_processor = _post_processor(fields, backend, special_tokens, adds_bos)
    chat_template = fields.values.optional_text("tokenizer.chat_template")
    return HFTokenizer(
        backend, special_tokens=special_tokens, chat_template=chat_template, source=source
    )


class _Fields:
    """The metadata of a tokenizer; errors name the file and the key."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.values = Fields(metadata, source)
        self.source = source
        self.tokens = _without_gaps(self.strings("tokenizer.ggml.tokens"), source)

    def special(self, name: str, default: int | None = None) -> str | None:
        """Return the token of `tokenizer.ggml.<name>_token_id`; None outside the vocabulary."""
        value = self.values.optional_integer(f"tokenizer.ggml.{name}_token_id")
        value = default if value is None else value
        return self.tokens[value] if value is not None and 0 <= value < len(self.tokens) else None

    def strings(self, key: str) -> list[str]:
        value = self.values.get(key)
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not texts:
            raise ConfigError(
                f"{self.source} has no {key}, so its tokenizer is incomplete: set --tokenizer"
            )
        return texts

    def numbers(self, key: str) -> list[float] | None:
        """Return one number per token, or None when the key is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        items = value if isinstance(value, list) else []
        numbers = [float(item) for item in items if not isinstance(item, str)]
        if len(numbers) != len(self.tokens):
            raise ConfigError(
                f"{self.source}: {key} must have a number for each of {len(self.tokens)} tokens"
            )
        return numbers

    def token_types(self) -> list[float]:
        return self.numbers("tokenizer.ggml.token_type") or [float(_NORMAL)] * len(self.tokens)


def _without_gaps(tokens: list[str], source: str) -> list[str]:
    """Name empty tokens as llama.cpp does. Raises ConfigError if two tokens have the same text."""
    named = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(named)) != len(named):
        raise ConfigError(f"{source}: tokenizer.ggml.tokens has the same token twice")
    return named


def _byte_level_bpe(fields: _Fields) -> tuple[Tokenizer, bool]:
    """Build the tokenizer; also return the default of `tokenizer.ggml.add_bos_token`."""
    name = fields.values.optional_text("tokenizer.ggml.pre")
    if name is None or name == "default":
        _logger.warning("pre_tokenizer_not_stated", model=fields.source, assumed="gpt-2")
    pre = find_pre_tokenization(name or "default", fields.source)
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    merges = [
        _split_merge(merge, fields.source) for merge in fields.strings("tokenizer.ggml.merges")
    ]
    try:
        backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"{fields.source}: tokenizer.ggml.merges does not fit its tokens: {error}"
        ) from error
    backend.normalizer = pre.normalizer()
    backend.pre_tokenizer = pre.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, fields, special={_CONTROL})
    return backend, pre.adds_bos


def _split_merge(merge: str, source: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ConfigError(f"{source}: tokenizer.ggml.merges has {merge!r}, which is not two tokens")
    return left, right


def _sentencepiece_bpe(fields: _Fields) -> tuple[Tokenizer, bool]:
    """Build the tokenizer as in Llama 2's tokenizer.json; also return whether it adds BOS.

    "▁" stands for a space, and there is one before each stretch of text.
    """
    architecture = fields.values.optional_text("general.architecture") or ""
    charsmap = "tokenizer.ggml.precompiled_charsmap"
    if architecture.startswith("gemma") or fields.values.get(charsmap):
        raise ConfigError(
            f"{fields.source}: the SentencePiece tokenizer of {architecture or 'this file'} cannot "
            "be rebuilt exactly: set --tokenizer to a directory with a tokenizer.json"
        )
    scores = fields.numbers("tokenizer.ggml.scores")
    if scores is None:
        raise ConfigError(
            f"{fields.source} has no tokenizer.ggml.scores, which a SentencePiece tokenizer needs"
        )
    types = fields.token_types()
    pieces = {
        token: score
        for token, score, kind in zip(fields.tokens, scores, types, strict=True)
        if kind in (_NORMAL, _USER_DEFINED)
    }
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    unk = fields.special("unknown", 0)
    backend = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(pieces, vocab),
            unk_token=unk,
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    _set_spaces(backend, has_prefix=fields.values.flag("tokenizer.ggml.add_space_prefix", True))
    _add_tokens(backend, fields, special={_CONTROL, _UNKNOWN})
    return backend, True


def _merges(pieces: Mapping[str, float], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every way to build a piece from two others, best score first.

    SentencePiece merges the pair whose result has the best score. In this order BPE, which merges
    by rank, does the same. Pairs of equal score are in the order of Hugging Face's own conversion.
    """
    found = []
    for piece, score in pieces.items():
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        halves = [(left, right) for left, right in halves if left in pieces and right in pieces]
        halves.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found += [((score, len(left), len(right)), (left, right)) for left, right in halves]
    found.sort(key=lambda item: item[0], reverse=True)
    return [pair for _, pair in found]


def _set_spaces(backend: Tokenizer, *, has_prefix: bool) -> None:
    replace = normalizers.Replace(" ", "▁")
    prefixed = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    backend.normalizer = prefixed if has_prefix else replace
    steps: list[decoders.Decoder] = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if has_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)


def _add_tokens(backend: Tokenizer, fields: _Fields, *, special: set[int]) -> None:
    """Add the tokens that are found before text is split; types in `special` are control tokens."""
    typed = list(zip(fields.tokens, fields.token_types(), strict=True))
    control = [token for token, kind in typed if kind in special]
    plain = [token for token, kind in typed if kind == _USER_DEFINED]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])


def _special_tokens(fields: _Fields, *, is_sentencepiece: bool) -> SpecialTokens:
    """Read the special tokens; SentencePiece files may leave out the usual ids 0, 1 and 2."""
    return SpecialTokens(
        bos=fields.special("bos", 1 if is_sentencepiece else None),
        eos=fields.special("eos", 2 if is_sentencepiece else None),
        unk=fields.special("unknown", 0 if is_sentencepiece else None),
        pad=fields.special("padding"),
    )


def _post_processor(
    fields: _Fields, backend: Tokenizer, tokens: SpecialTokens, adds_bos: bool
) -> processors.PostProcessor | None:
    template, used = ["$A"], {}
    if tokens.bos is not None and fields.values.flag("tokenizer.ggml.add_bos_token", adds_bos):
        template, used["bos"] = ["bos", *template], tokens.bos
    if tokens.eos is not None and fields.values.flag("tokenizer.ggml.add_eos_token", False):
        template, used["eos"] = [*template, "eos"], tokens.eos
    if not used:
        return None
    special = [
        {"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}
        for name, token in used.items()
    ]
    return processors.TemplateProcessing(single=template, special_tokens=special)
