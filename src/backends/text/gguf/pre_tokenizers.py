"""The values of `tokenizer.ggml.pre`, which name how text is split before byte-level BPE.

The names are llama.cpp's (src/llama-vocab.cpp). Some of its regular expressions only approximate
the model's own tokenizer.json; then the original is used here. NFC comes from there, too, because
GGUF files do not mention it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from ....core.errors import ConfigError
from ....core.wording.suggest import did_you_mean

Steps = tuple[pre_tokenizers.PreTokenizer, ...]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TAIL_SLASH = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_TAIL_SLASH}"
_GPT4O = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_TAIL_SLASH}"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370"
    "-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    "\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20"
    "-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6"
    "-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-"
    "\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-"
    "\U000118df\U0001e900-\U0001e943"
    "]+"
)
"""Cased letters, escaped because some of them have a canonical equivalent."""
_DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


def _bytes(*, splits_words: bool) -> pre_tokenizers.PreTokenizer:
    """Map bytes to GPT-2's alphabet; with `splits_words`, after splitting as GPT-2 does."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits_words)


def _split(*expressions: str) -> Steps:
    """Split at the matches of each regular expression, one after the other."""
    return tuple(pre_tokenizers.Split(Regex(one), behavior="isolated") for one in expressions)


_BYTES = _bytes(splits_words=False)
_WORDS = _bytes(splits_words=True)
_DIGITS = pre_tokenizers.Digits(individual_digits=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenization:
    """The preparation of text for one value of `tokenizer.ggml.pre`."""

    steps: Steps
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is a token becomes that token, even if the merges do not build it."""
    adds_bos: bool = False
    """Default of `tokenizer.ggml.add_bos_token`."""

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(list(self.steps))


_GPT2 = PreTokenization(steps=(_WORDS,))
_GPT2_NFC = PreTokenization(steps=(_WORDS,), nfc=True)
_DIGITS_FIRST = PreTokenization(steps=(_DIGITS, _WORDS))
_LLAMA_BPE = PreTokenization(steps=(*_split(_LLAMA3), _BYTES), ignore_merges=True, adds_bos=True)
_CL100K = PreTokenization(steps=(*_split(_LLAMA3), _BYTES))
_QWEN = PreTokenization(steps=(*_split(_QWEN2), _BYTES))
_O200K = PreTokenization(steps=(*_split(_GPT4O), _BYTES))
_BAILINGMOE = PreTokenization(steps=(*_split(_BAILING), _BYTES))
_POINTS_AND_SPACES = PreTokenization(steps=(*_split(_BLOOM), _BYTES))
_DEEPSEEK_V3 = PreTokenization(
    steps=(*_split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3), _BYTES)
)
_TINY_AYA = PreTokenization(steps=(*_split(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O), _BYTES))

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "jais": _GPT2,
    "trillion": _GPT2,
    "granite-docling": _GPT2,
    "gigachat": _GPT2,
    "a.x-4.0": _GPT2,
    "mellum": _GPT2,
    "exaone4": _GPT2,
    "mpt": _GPT2_NFC,
    "olmo": _GPT2_NFC,
    "smollm": _DIGITS_FIRST,
    "starcoder": _DIGITS_FIRST,
    "refact": _DIGITS_FIRST,
    "codeshell": _DIGITS_FIRST,
    "exaone": _DIGITS_FIRST,
    "minerva-7b": _DIGITS_FIRST,
    "mellum2": _DIGITS_FIRST,
    "command-r": PreTokenization(steps=(_DIGITS, _WORDS), nfc=True),
    "falcon": PreTokenization(
        steps=(
            pre_tokenizers.Punctuation("contiguous"),
            _WORDS,
            pre_tokenizers.Digits(individual_digits=False),
            *_split("[0-9][0-9][0-9]"),
        )
    ),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "falcon3": _LLAMA_BPE,
    "falcon-h1": _LLAMA_BPE,
    "pixtral": _LLAMA_BPE,
    "midm-2.0": _LLAMA_BPE,
    "lfm2": _LLAMA_BPE,
    "smaug-bpe": _CL100K,
    "dbrx": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": PreTokenization(steps=(*_split(_LLAMA3), _BYTES), ignore_merges=True),
    "glm5": PreTokenization(steps=(*_split(_LLAMA3), _BYTES), ignore_merges=True),
    "qwen2": PreTokenization(steps=(*_split(_QWEN2), _BYTES), nfc=True),
    "qwen35": PreTokenization(steps=(*_split(_QWEN35), _BYTES), nfc=True),
    "deepseek-r1-qwen": _QWEN,
    "stablelm2": _QWEN,
    "megrez": _QWEN,
    "kormo": _QWEN,
    "hunyuan": _QWEN,
    "solar-open": _QWEN,
    "grok-2": _QWEN,
    "tekken": PreTokenization(steps=(*_split(_TEKKEN), _BYTES), ignore_merges=True, adds_bos=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "kanana2": _O200K,
    "minimax-m2": _O200K,
    "tiny_aya": _TINY_AYA,
    "cohere2moe": _TINY_AYA,
    "bailingmoe": _BAILINGMOE,
    "bailingmoe2": _BAILINGMOE,
    "llada-moe": _BAILINGMOE,
    "seed-coder": PreTokenization(steps=(*_split(_SEED_CODER), _BYTES)),
    "bloom": _POINTS_AND_SPACES,
    "gpt3-finnish": _POINTS_AND_SPACES,
    "poro-chat": _POINTS_AND_SPACES,
    "viking": PreTokenization(steps=(*_split(_BLOOM), _DIGITS, _BYTES)),
    "deepseek-llm": PreTokenization(
        steps=(
            *_split("[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_MARKS, r"\s+$", _CHINESE),
            _DIGITS,
            _BYTES,
        )
    ),
    "deepseek-coder": PreTokenization(
        steps=(*_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE), _DIGITS, _BYTES)
    ),
    "deepseek-v3": _DEEPSEEK_V3,
    "hunyuan-dense": _DEEPSEEK_V3,
    "joyai-llm": _DEEPSEEK_V3,
}


def find_pre_tokenization(name: str, source: str) -> PreTokenization:
    """Look up a value of `tokenizer.ggml.pre`. Raises ConfigError if it is not supported."""
    if name not in PRE_TOKENIZATIONS:
        raise ConfigError(
            f"{source}: tokenizer.ggml.pre is {name!r:.80}, which is not supported"
            f"{did_you_mean(name, PRE_TOKENIZATIONS) or '.'} Set --tokenizer to a directory with a "
            "tokenizer.json"
        )
    return PRE_TOKENIZATIONS[name]
