"""Where generation ends, for the vocabularies of many models."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.backends.weights.gguf.stop_tokens import stop_token_ids

NORMAL, CONTROL = 1, 3


def metadata(control: list[str], **ids: int) -> dict[str, Any]:
    """A vocabulary of a word and these control tokens, with the stated ids."""
    stated = {f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items()}
    return stated | {
        "tokenizer.ggml.tokens": ["word", *control],
        "tokenizer.ggml.token_type": [NORMAL, *[CONTROL] * len(control)],
    }


@pytest.mark.parametrize(
    ("control", "ids", "expected"),
    [
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], {"eos": 3}, (3,)),
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], {"eos": 1}, (1, 3)),
        (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"], {"eos": 1, "bos": 1}, (1, 2, 3)),
        (["<|endoftext|>", "<|end|>", "<|user|>"], {"eos": 1}, (1, 2)),
        (["<eos>", "<bos>", "<end_of_turn>"], {"eos": 1, "bos": 2}, (1, 3)),
        (["<eos>", "<bos>", "<turn|>"], {"eos": 1}, (1, 3)),
        (["<|return|>", "<|call|>", "<|end|>"], {"eos": 1}, (1, 2)),
        (["<s>", "</s>"], {"eos": 2}, (2,)),
        (["<s>", "</s>"], {"eos": 2, "eot": 1, "eom": 2}, (2, 1)),
    ],
    ids=["smollm", "qwen", "llama3", "phi3", "gemma2", "gemma4", "gpt-oss", "mistral", "stated"],
)
def test_stated_ends_come_before_ends_of_messages(
    control: list[str], ids: dict[str, int], expected: tuple[int, ...]
) -> None:
    assert stop_token_ids(metadata(control, **ids)) == expected


def test_ordinary_words_never_end_a_message() -> None:
    """Whatever their text is."""
    words = metadata(["<|im_end|>"]) | {"tokenizer.ggml.token_type": [NORMAL, NORMAL]}
    assert stop_token_ids(words) == ()
    untyped = {"tokenizer.ggml.tokens": ["<|im_end|>"], "tokenizer.ggml.eos_token_id": 0}
    assert stop_token_ids(untyped) == (0,)


@pytest.mark.parametrize("wrong", [-1, 2**32 - 1, 2, "1", True, None])
def test_ids_outside_the_vocabulary_end_nothing(wrong: object) -> None:
    changed = metadata(["</s>"]) | {"tokenizer.ggml.eos_token_id": wrong}
    assert stop_token_ids(changed) == ()
