"""What the core asks of the rooms it must not import: the executor and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .plan import StepPlan, StepResult

Progress = Callable[[str, float], None]
"""Called with a stage ("loading weights") and the fraction of it that is done, 0.0 to 1.0."""


def no_progress(stage: str, part: float) -> None:
    """A Progress that shows nothing."""


ChatMessage = Mapping[str, Any]
"""One message of a chat: "role" and "content", as in the OpenAI API; content is a string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the core and the API must know of the loaded model and its KV cache."""

    name: str
    """Short name, shown by /v1/models unless --served-model-name says otherwise."""
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    """Token ids at the boundary are in [0, vocab_size)."""
    max_model_len: int
    """Longest sequence, prompt and output together, that the model was made for."""
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    block_size: int
    num_blocks: int
    """KV blocks on the device."""
    num_host_blocks: int = 0
    """KV blocks in host memory, for swapped requests."""
    kv_bytes_per_block: int
    kv_cache_dtype: str | None = None
    """None: `dtype`."""
    attention_backend: str = "torch"
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    """From the model's generation_config: only names of SamplingParams."""


class Executor(Protocol):
    """Computes plans, one at a time and in order, on one thread that is always the same."""

    @property
    def info(self) -> ModelInfo: ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. Raising ends every request of the plan; a `failure` ends only one."""
        ...

    def close(self) -> None:
        """Give back the device's memory; nothing is called afterwards."""
        ...


class Detokenizer(Protocol):
    """Turns one request's tokens into text as they come; holds back what may still change."""

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that became certain through these tokens."""
        ...

    def finish(self) -> str:
        """What was held back; an incomplete character becomes U+FFFD. Nothing is added after."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Methods may be called from any thread."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_chars_per_token(self) -> int:
        """No token stands for more characters: a cheap bound before tokenizing."""
        ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text. With `parse_special` False, even "<|im_end|>" is plain text."""
        ...

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat, through the model's template.

        Text in a message's content never becomes a special token. Raises InvalidRequestError when
        there is no template or it refuses the messages.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token stands for; need not be valid UTF-8."""
        ...

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental detokenizer of generated tokens, without the prompt's text."""
        ...
