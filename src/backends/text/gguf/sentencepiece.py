"""SentencePiece tokenizers of GGUF files: BPE over characters, with "▁" for a space.

Llama 2's kind has scores and no merges. Gemma 4's kind has merges.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ....core.errors import ConfigError
from .fields import TokenizerFields, TokenType

_PREFIX = normalizers.Prepend("▁")
_SPACES = normalizers.Replace(" ", "▁")
_MAX_MERGES = 1 << 21
"""Known vocabularies of 256,000 tokens have 580,000 merges. One of 4,000 runs of a letter would
have 8 million."""
_EXTRA_SPACES = (
    normalizers.Replace(Regex(r"\A +| +\z"), ""),
    normalizers.Replace(Regex(" {2,}"), " "),
)


def sentencepiece_bpe(fields: TokenizerFields) -> Tokenizer:
    """Build a tokenizer as in Llama 2's tokenizer.json, with merges computed from the scores.

    Raises ConfigError without scores, or if the file normalizes text with a table of its own.
    """
    if fields.values.get("tokenizer.ggml.precompiled_charsmap"):
        raise fields.error(
            "its SentencePiece tokenizer cannot be rebuilt exactly (it has a precompiled_charsmap):"
            " set --tokenizer to a directory with a tokenizer.json"
        )
    usable = (TokenType.NORMAL, TokenType.USER_DEFINED)
    pieces = {
        token: score
        for token, score, kind in zip(fields.tokens, fields.scores(), fields.types, strict=True)
        if kind in usable
    }
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    merges = _merges_by_score(pieces, vocab)
    if merges is None:
        raise fields.error(
            f"its tokens can be merged from each other in more than {_MAX_MERGES} ways"
        )
    backend = _bpe(fields, vocab, merges, fields.special("unknown", 0))
    _set_spaces(backend, fields)
    return backend


def gemma4_bpe(fields: TokenizerFields) -> Tokenizer:
    """Build a tokenizer as in Gemma 4's tokenizer.json. Raises ConfigError without merges."""
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    backend = _bpe(fields, vocab, fields.merges(), fields.special("unknown"))
    backend.normalizer = _SPACES
    backend.decoder = _decoder(strips_space=False)
    return backend


def _bpe(
    fields: TokenizerFields,
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    unk: str | None,
) -> Tokenizer:
    try:
        model = models.BPE(
            vocab=vocab, merges=merges, unk_token=unk, byte_fallback=True, fuse_unk=True
        )
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"{fields.source}: tokenizer.ggml.merges does not fit its tokens: {error}"
        ) from error
    return Tokenizer(model)


def _merges_by_score(
    pieces: Mapping[str, float], vocab: Mapping[str, int]
) -> list[tuple[str, str]] | None:
    """Return every way to build a piece from two others, best score first; None if too many.

    SentencePiece merges the pair whose result has the best score. In this order BPE, which merges
    by rank, does the same. Pairs of equal score are in the order of Hugging Face's own conversion.
    """
    found: list[tuple[tuple[float, int, int], tuple[str, str]]] = []
    known = {piece: piece for piece in pieces}  # so that all merges share the texts of the pieces
    for piece, score in pieces.items():
        cuts = range(1, len(piece))
        pairs = ((known.get(piece[:cut]), known.get(piece[cut:])) for cut in cuts)
        halves = [(left, right) for left, right in pairs if left and right]
        if len(found) + len(halves) > _MAX_MERGES:
            return None
        halves.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found += [((score, len(left), len(right)), (left, right)) for left, right in halves]
    found.sort(key=lambda item: item[0], reverse=True)
    return [pair for _, pair in found]


def _set_spaces(backend: Tokenizer, fields: TokenizerFields) -> None:
    """Set where spaces are added and removed.

    Most models have one before each stretch of text between control tokens. Mistral's, from the
    third version on, have one before the first stretch only: `[INST]` became a control token.
    """
    has_prefix = fields.flag("add_space_prefix", True)
    extra = _EXTRA_SPACES if fields.flag("remove_extra_whitespaces", False) else ()
    if has_prefix and "[INST]" in fields.of_type(TokenType.CONTROL):
        backend.normalizer = normalizers.Sequence(list(extra)) if extra else None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        prefix = (_PREFIX,) if has_prefix else ()
        backend.normalizer = normalizers.Sequence([*extra, *prefix, _SPACES])
    backend.decoder = _decoder(strips_space=has_prefix)


def _decoder(*, strips_space: bool) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if strips_space:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
