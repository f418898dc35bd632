"""The tokens at which generation ends, from the metadata of a GGUF file.

Files state the token at the end of a text, and often leave out the one at the end of a chat
message: then it is found by its text, as in llama.cpp (src/llama-vocab.cpp). llama.cpp also stops
at "<|endoftext|>" and similar tokens of documents. tokenmill stops there only if a model states
them, as transformers does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_STATED = ("eos_token_id", "eot_token_id", "eom_token_id")
_FOUND_WHOLE = (3, 4)
"""Token types: control and user-defined tokens; others are parts of words."""
_ENDS_OF_MESSAGES = (
    "<|im_end|>",  # Qwen, SmolLM3, Phi-4
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3, before a tool's result
    "<|eot|>",  # Llama 4
    "<|end|>",  # Phi-3
    "<end_of_turn>",  # Gemma 2 and 3
    "<turn|>",  # Gemma 4
    "<|tool_response>",  # Gemma 4, before a tool's result
    "<|return|>",  # gpt-oss
    "<|call|>",  # gpt-oss, before a tool's result
)
_HARMONY = ("<|return|>", "<|call|>")
"""In gpt-oss's format "<|end|>" only ends a part of an answer."""


def stop_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of the stated ends, then those of added tokens that end a message."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    stated = (metadata.get(f"tokenizer.ggml.{name}") for name in _STATED)
    valid = (index for index in stated if isinstance(index, int) and _is_token(index, tokens))
    return tuple(dict.fromkeys([*valid, *_ends_of_messages(metadata, tokens)]))


def _is_token(index: int, tokens: list[Any]) -> bool:
    """Whether an id is in the vocabulary; without a vocabulary, every id is taken."""
    return not isinstance(index, bool) and (not tokens or 0 <= index < len(tokens))


def _ends_of_messages(metadata: Mapping[str, Any], tokens: list[Any]) -> Iterator[int]:
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        return
    added = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in _FOUND_WHOLE and token in _ENDS_OF_MESSAGES
    }
    if all(token in added for token in _HARMONY):
        added.pop("<|end|>", None)
    yield from (added[token] for token in _ENDS_OF_MESSAGES if token in added)
