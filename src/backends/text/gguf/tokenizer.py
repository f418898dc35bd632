"""Builds a tokenizer from the metadata of a GGUF file.

`tokenizer.ggml.model` names the algorithm. The oracle is the model's own tokenizer.json; where
llama.cpp differs from it, llama.cpp is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from ....core.errors import ConfigError
from ....core.log import get_logger
from ...weights.config.fields import Fields
from ..chat.given_template import GivenTemplate
from ..tokenizer import HFTokenizer, SpecialTokens
from .fields import TokenizerFields, TokenType
from .pre_tokenizers import PreTokenization, find_pre_tokenization
from .sentencepiece import gemma4_bpe, sentencepiece_bpe

_logger = get_logger("text")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Algorithm:
    """The meaning of a value of `tokenizer.ggml.model`."""

    description: str
    build: Callable[[TokenizerFields], Tokenizer]
    default_ids: Mapping[str, int]
    """Ids of special tokens that a file may leave out."""
    adds_bos: Callable[[TokenizerFields], bool]
    unknown_is_special: bool = True


def tokenizer_from_gguf(
    metadata: Mapping[str, Any], source: str, template: GivenTemplate | None = None
) -> HFTokenizer:
    """Build a GGUF file's tokenizer with its chat template, or with `template` in its place.
    `source` is the file, for errors.

    Raises ConfigError when a part is missing, or cannot be rebuilt exactly.
    """
    backend, special_tokens = backend_from_gguf(metadata, source)
    own = Fields(metadata, source).optional_text
    chat_template = template or own("tokenizer.chat_template")
    return HFTokenizer(
        backend, special_tokens=special_tokens, chat_template=chat_template, source=source
    )


def backend_from_gguf(metadata: Mapping[str, Any], source: str) -> tuple[Tokenizer, SpecialTokens]:
    """Build the tokenizer without its chat template. Raises ConfigError."""
    algorithm = _find_algorithm(metadata, source)
    fields = TokenizerFields(metadata, source)
    backend = algorithm.build(fields)
    _add_tokens(backend, fields, unknown_is_special=algorithm.unknown_is_special)
    special_tokens = _special_tokens(fields, algorithm.default_ids)
    backend.post_processor = _post_processor(
        fields, backend, special_tokens, adds_bos=algorithm.adds_bos(fields)
    )
    return backend, special_tokens


def _find_algorithm(metadata: Mapping[str, Any], source: str) -> _Algorithm:
    model = metadata.get("tokenizer.ggml.model")
    if isinstance(model, str) and model in _ALGORITHMS:
        return _ALGORITHMS[model]
    found = "no tokenizer.ggml.model" if model is None else f"tokenizer.ggml.model {model!r:.80}"
    known = ", ".join(f"{name} ({one.description})" for name, one in _ALGORITHMS.items())
    raise ConfigError(
        f"{source} has {found}, supported: {known}. Set --tokenizer to a directory with a "
        "tokenizer.json"
    )


def _byte_level_bpe(fields: TokenizerFields) -> Tokenizer:
    if fields.text("pre") in (None, "default"):
        _logger.warning("pre_tokenizer_not_stated", model=fields.source, assumed="gpt-2")
    pre = _pre_tokenization(fields)
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    merges = fields.merges()
    try:
        backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"{fields.source}: tokenizer.ggml.merges does not fit its tokens: {error}"
        ) from error
    backend.normalizer = pre.normalizer()
    backend.pre_tokenizer = pre.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenization(fields: TokenizerFields) -> PreTokenization:
    return find_pre_tokenization(fields.text("pre") or "default", fields.source)


_ALGORITHMS = {
    "gpt2": _Algorithm(
        description="byte-level BPE",
        build=_byte_level_bpe,
        default_ids={},
        adds_bos=lambda fields: fields.flag("add_bos_token", _pre_tokenization(fields).adds_bos),
        unknown_is_special=False,
    ),
    "llama": _Algorithm(
        description="SentencePiece BPE",
        build=sentencepiece_bpe,
        default_ids={"unknown": 0, "bos": 1, "eos": 2},
        adds_bos=lambda fields: fields.flag("add_bos_token", True),
    ),
    "gemma4": _Algorithm(
        description="Gemma 4's BPE",
        build=gemma4_bpe,
        default_ids={},
        adds_bos=lambda fields: True,  # the first converted files say no, which was wrong
    ),
}


def _add_tokens(backend: Tokenizer, fields: TokenizerFields, *, unknown_is_special: bool) -> None:
    """Add the tokens that are found before text is split; control tokens are special."""
    types = (TokenType.CONTROL, TokenType.UNKNOWN) if unknown_is_special else (TokenType.CONTROL,)
    strips = _strips_whitespace_after_tokens(fields)
    backend.add_special_tokens(
        [_added(token, special=True, strips=strips) for token in fields.of_type(*types)]
    )
    backend.add_tokens(
        [
            _added(token, special=False, strips=strips)
            for token in fields.of_type(TokenType.USER_DEFINED)
        ]
    )


def _added(token: str, *, special: bool, strips: bool) -> AddedToken:
    rstrip = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
    return AddedToken(token, special=special, normalized=False, rstrip=rstrip)


def _strips_whitespace_after_tokens(fields: TokenizerFields) -> bool:
    """Whether control tokens remove whitespace after them, as in Phi-3. Files do not state it."""
    return (
        fields.text("model") == "llama"
        and fields.values.optional_text("general.architecture") == "phi3"
    )


def _special_tokens(fields: TokenizerFields, default_ids: Mapping[str, int]) -> SpecialTokens:
    return SpecialTokens(
        bos=fields.special("bos", default_ids.get("bos")),
        eos=fields.special("eos", default_ids.get("eos")),
        unk=fields.special("unknown", default_ids.get("unknown")),
        pad=fields.special("padding"),
    )


def _post_processor(
    fields: TokenizerFields, backend: Tokenizer, tokens: SpecialTokens, *, adds_bos: bool
) -> processors.PostProcessor | None:
    template, used = ["$A"], {}
    if tokens.bos is not None and adds_bos:
        template, used["bos"] = ["bos", *template], tokens.bos
    if tokens.eos is not None and fields.flag("add_eos_token", False):
        template, used["eos"] = [*template, "eos"], tokens.eos
    if not used:
        return None
    special = [
        {"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}
        for name, token in used.items()
    ]
    return processors.TemplateProcessing(single=template, special_tokens=special)
