"""Loads a tokenizer from a Hugging Face directory or a .gguf file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ...core.errors import ConfigError
from ...core.log import get_logger
from ..weights.config.fields import one_line
from ..weights.files.bounded import read_bounded
from ..weights.files.json_file import read_json
from ..weights.files.model_path import gguf_in
from ..weights.gguf.file import read_gguf_metadata
from ..weights.gguf.parts import first_part
from .chat.given_template import GivenTemplate
from .gguf.tokenizer import backend_from_gguf, tokenizer_from_gguf
from .library_errors import failures_as
from .sentencepiece_file import read_sentencepiece_model
from .tokenizer import HFTokenizer, SpecialTokens

_FLAGS = ("add_bos_token", "add_eos_token")
_CONVERTIBLE = ("tekken.json", "vocab.json", "tokenizer.tiktoken")
_MAX_TOKENIZER_BYTES = 1 << 27
"""The largest known tokenizer.json, Gemma 3's, has 33 MB."""
_logger = get_logger("text")


def load_tokenizer(path: Path, template: GivenTemplate | None = None) -> HFTokenizer:
    """Load a model's tokenizer with its chat template, or with `template` in its place.

    A directory must have a tokenizer.json, a tokenizer.model, or hold a GGUF model and nothing
    else. If they exist, tokenizer_config.json, special_tokens_map.json and chat_template.jinja are
    read, too. The post-processor in tokenizer.json determines the tokens added around a text (BOS,
    EOS). Only the header of a .gguf file is read. Raises ConfigError if the tokenizer is missing,
    damaged or not supported.

    tokenizer.json is used unchanged. transformers 5 does the same, except for LlamaTokenizer: it
    replaces the file's normalizer by a pre-tokenizer. Then text that begins with a space, or that
    follows a control token, no longer has SentencePiece's tokens.
    """
    with failures_as(lambda reason: ConfigError(f"the tokenizer of {path} fails: {reason}")):
        return _load(path, template)


def _load(path: Path, template: GivenTemplate | None) -> HFTokenizer:
    if path.is_dir() and not (path / "tokenizer.json").exists():
        path = gguf_in(path) or path
    if path.is_dir():
        return _from_directory(path, template)
    first = first_part(path)
    if path.exists() and not first.exists():
        raise ConfigError(f"{first} is missing: it is the first part of the model of {path.name}")
    path = first
    if path.is_file() and path.suffix == ".gguf":
        return tokenizer_from_gguf(read_gguf_metadata(path), str(path), template)
    found = "it is neither" if path.exists() else "it does not exist"
    raise ConfigError(
        f"no tokenizer at {path}: it must be a directory with tokenizer.json or a .gguf file, "
        f"but {found}"
    )


def _from_directory(path: Path, template: GivenTemplate | None) -> HFTokenizer:
    config = _read_json(path / "tokenizer_config.json")
    special_tokens = _special_tokens(config, _read_json(path / "special_tokens_map.json"))
    if not (path / "tokenizer.json").is_file() and (path / "tokenizer.model").is_file():
        backend, found = _from_sentencepiece(path, config)
        special_tokens = special_tokens.completed_by(found)
    else:
        backend = _read_backend(path)
    _complete_added_tokens(backend, config, special_tokens, path)
    return HFTokenizer(
        backend,
        special_tokens=special_tokens,
        chat_template=template or _chat_template(path, config),
        source=str(path),
    )


def _from_sentencepiece(path: Path, config: Mapping[str, Any]) -> tuple[Tokenizer, SpecialTokens]:
    """Build a tokenizer from tokenizer.model and the settings in tokenizer_config.json."""
    file = path / "tokenizer.model"
    flags = {f"tokenizer.ggml.{name}": config.get(name) for name in _FLAGS}
    backend, special_tokens = backend_from_gguf(read_sentencepiece_model(file) | flags, str(file))
    for index, token in _listed_tokens(config, path):
        if (
            backend.token_to_id(token.content) == index
        ):  # a piece of the vocabulary that is never split
            backend.add_tokens([token])
    return backend, special_tokens


def _read_backend(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{path} has no tokenizer.json and no tokenizer.model{_hint(path)}")
    with failures_as(lambda reason: ConfigError(f"{file} cannot be read as a tokenizer: {reason}")):
        return Tokenizer.from_buffer(read_bounded(file, _MAX_TOKENIZER_BYTES))


def _hint(path: Path) -> str:
    found = [name for name in _CONVERTIBLE if (path / name).is_file()]
    if found:
        return f": convert its {found[0]}, by loading and saving it with transformers"
    return ": name that of another model with --tokenizer"


def _read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file; an empty one if the file does not exist."""
    return read_json(file) if file.is_file() else {}


def _read_text(file: Path) -> str:
    try:
        return read_bounded(file).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _special_tokens(config: Mapping[str, Any], fallback: Mapping[str, Any]) -> SpecialTokens:
    def text(role: str) -> str | None:
        value = config.get(f"{role}_token") or fallback.get(f"{role}_token")
        value = value.get("content") if isinstance(value, Mapping) else value
        return value if isinstance(value, str) and value else None

    return SpecialTokens(bos=text("bos"), eos=text("eos"), unk=text("unk"), pad=text("pad"))


def _complete_added_tokens(
    backend: Tokenizer, config: Mapping[str, Any], special_tokens: SpecialTokens, path: Path
) -> None:
    """Add the tokens that tokenizer.json lacks: the configuration's, and words with a role."""
    for index, token in _listed_tokens(config, path):
        if backend.id_to_token(index) is None:
            backend.add_tokens([token])
            if backend.token_to_id(token.content) != index:
                raise ConfigError(f"{path}: added token {token.content!r} cannot have id {index}")
    special = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    for text in special_tokens.as_variables().values():
        if text not in special and backend.token_to_id(text) is not None:
            backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _listed_tokens(config: Mapping[str, Any], path: Path) -> list[tuple[int, AddedToken]]:
    """Return the tokens in the configuration's added_tokens_decoder, ordered by id."""
    known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    tokens = []
    try:
        for index, fields in (config.get("added_tokens_decoder") or {}).items():
            given = {name: fields[name] for name in known if name in fields}
            tokens.append((_token_id(index), AddedToken(**given)))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}/tokenizer_config.json: added_tokens_decoder is malformed: {one_line(error)}"
        ) from error
    return sorted(tokens, key=lambda item: item[0])


def _token_id(text: str) -> int:
    index = int(text)
    if not 0 <= index < 2**31:
        raise ValueError(f"{text!r:.80} is not the id of a token")
    return index


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """Read chat_template.jinja, or else the configuration's template.

    If the configuration has a list of templates, the one named "default" is used.
    """
    file = path / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {
            str(entry.get("name")): entry.get("template")
            for entry in template
            if isinstance(entry, Mapping)
        }
        template = named.get("default")
        if template is None:
            _logger.warning("no_default_chat_template", path=str(path), found=sorted(named))
    if template is not None and not isinstance(template, str):
        raise ConfigError(
            f"{path}/tokenizer_config.json: chat_template must be a string or a list of templates"
        )
    return template
