"""The values of `tokenizer.ggml.pre`, which name how text is split before byte-level BPE.

The names are llama.cpp's (src/llama-vocab.cpp). Some of its regular expressions only approximate
the model's own tokenizer.json; then the original is used here. NFC comes from there, too, because
GGUF files do not mention it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from ...core.errors import ConfigError
from ...core.suggest import did_you_mean

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_TAIL_SLASH}"
_GPT4O = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_TAIL_SLASH}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenization:
    """The preparation of text for one value of `tokenizer.ggml.pre`."""

    split: str | None = None
    """Regular expression of the pieces. None: GPT-2's, which ByteLevel contains."""
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is a token becomes that token, even if the merges do not build it."""
    adds_bos: bool = False
    """Default of `tokenizer.ggml.add_bos_token`."""

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.split is not None:
            steps.append(pre_tokenizers.Split(Regex(self.split), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.split is None))
        return pre_tokenizers.Sequence(steps)


_GPT2 = PreTokenization()
_DIGITS = PreTokenization(single_digits=True)
_LLAMA_BPE = PreTokenization(split=_LLAMA3, ignore_merges=True, adds_bos=True)

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": PreTokenization(single_digits=True, nfc=True),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "smaug-bpe": PreTokenization(split=_LLAMA3),
    "dbrx": PreTokenization(split=_LLAMA3),
    "qwen2": PreTokenization(split=_QWEN2, nfc=True),
    "deepseek-r1-qwen": PreTokenization(split=_QWEN2),
    "qwen35": PreTokenization(split=_QWEN35, nfc=True),
    "tekken": PreTokenization(split=_TEKKEN, ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenization(split=_GPT4O),
    "llama4": PreTokenization(split=_GPT4O),
}


def find_pre_tokenization(name: str, source: str) -> PreTokenization:
    """Look up a value of `tokenizer.ggml.pre`. Raises ConfigError if it is not supported."""
    if name not in PRE_TOKENIZATIONS:
        known = ", ".join(PRE_TOKENIZATIONS)
        raise ConfigError(
            f"{source}: tokenizer.ggml.pre is {name!r}, supported are {known} (or set --tokenizer "
            "to a directory with a tokenizer.json)"
            f"{did_you_mean(name, PRE_TOKENIZATIONS)}"
        )
    return PRE_TOKENIZATIONS[name]
