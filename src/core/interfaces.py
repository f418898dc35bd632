"""Protocols of the executor and the tokenizer, which core uses and must not import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .plan import StepPlan, StepResult
from .requests.grammar import Grammar
from .requests.media import MediaItem
from .requests.media_prompt import ReadImage

Progress = Callable[[str, float], None]
"""Called with the name of a stage, for example "loading weights", and the fraction of it that is
done, 0.0 to 1.0."""


def no_progress(stage: str, part: float) -> None:
    """A Progress that shows nothing."""


ChatMessage = Mapping[str, Any]
"""One message of a chat: "role" and "content", as in the OpenAI API; content is a string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Facts about a model's chat template."""

    source: str
    """The template itself, in Jinja."""
    variables: frozenset[str] = frozenset()
    """Names of the variables that it reads."""

    @property
    def shows_tools(self) -> bool:
        """Whether it describes the functions that the model may call."""
        return "tools" in self.variables

    @property
    def shows_documents(self) -> bool:
        """Whether it shows the documents of a request."""
        return "documents" in self.variables


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaInfo:
    """Facts about a model that reads images."""

    config: Mapping[str, Any]
    """Input of the processor: the fields of config.json and of the preprocessor's and the
    processor's files, which take precedence in this order."""
    placeholder_token_id: int
    """The token in whose places rows of images stand."""
    shown_token_id: int | None = None
    """The token that chat templates write once per image. None: the placeholder."""
    bytes_per_token: int
    """Memory of one token's embedding in the encoder cache."""
    cache_bytes: int
    """Size of the encoder cache."""
    largest_span_tokens: int = 0
    """The maximum number of tokens of an item whose tokens see each other, so that one step
    computes them all. 0: the model has no such items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about the loaded model and its KV cache that core and API need."""

    name: str
    """Short name; the model's name in the API unless --served-model-name is given."""
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    """Token ids are in [0, vocab_size)."""
    max_model_len: int
    """Longest sequence that the model was made for, in tokens: prompt and output together."""
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    hidden_size: int = 0
    """Length of a hidden state, and so of an embedding."""
    block_size: int
    num_blocks: int
    """KV blocks on the device."""
    num_host_blocks: int = 0
    """KV blocks in host memory, for swapped requests."""
    kv_windows: tuple[int | None, ...] = (None,)
    """Per group of layers, the maximum number of tokens that a query sees, itself included. A
    request has a block table per group, with the blocks of these tokens only. None: all earlier
    tokens. Any block may serve any group."""
    num_stages: int = 1
    """Number of plans that are computed at the same time, each in another stage of the model. The
    engine launches this many, and no request is in two of them. With one stage it launches at most
    two, of which the second continues the first."""
    kv_bytes_per_block: int
    kv_cache_dtype: str | None = None
    """None: the same as `dtype`."""
    attention_backend: str = "torch"
    linear_backend: str = "torch"
    drafts_need_lookahead: bool = False
    """See SpeculationLimits.needs_lookahead."""
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    """Fields of SamplingParams that the model's generation_config sets."""
    media: MediaInfo | None = None
    """None: the model reads only text, or its encoder is not loaded."""

    @property
    def largest_span_tokens(self) -> int:
        """See MediaInfo.largest_span_tokens; 0 for a model that reads only text."""
        return 0 if self.media is None else self.media.largest_span_tokens


class TakesMedia(Protocol):
    """The additional part of the executor of a model with `info.media`."""

    def take_media(self, items: Sequence[MediaItem]) -> None:
        """Keep the pixels of these items until a plan releases them. The engine's thread calls it
        before it launches a plan that needs them.

        An open plan may be yet to release the same item: it then releases what was taken before.
        """
        ...


class MediaReader(Protocol):
    """Turns the bytes of images into items. Used in the event loop of the process that reads
    requests, which decodes no image itself."""

    async def read(self, data: bytes, salt: str = "") -> ReadImage:
        """Decode and process an image file, unless it is known. `salt`: only images that were read
        with the same salt are known.

        Raises InvalidRequestError for bytes that are no image or that the model cannot read,
        OverloadedError if too many images wait. Calls with the same image share the work.
        """
        ...

    def find(self, digest: bytes) -> ReadImage | None:
        """A known image, by its `ReadImage.digest`."""
        ...

    def close(self) -> None:
        """Free all resources. No other method is called afterwards."""
        ...


class Pending(Protocol):
    """A step that was launched."""

    def result(self) -> StepResult:
        """Wait until the step is computed. Called once, on the device thread, in launch order.

        After an exception, the requests of the plan are computed again, in two halves, until one
        fails alone. An entry in `failures` of the result ends only one request. DeviceError means
        that the executor can compute nothing more.
        """
        ...


class Executor(Protocol):
    """Computes plans in the order in which they are launched.

    The engine's thread calls `launch` and `health`; the device thread calls `close` and the results
    of launched steps. Up to two steps are open at once, or one per stage (`info.num_stages`).
    """

    @property
    def info(self) -> ModelInfo: ...

    def launch(self, plan: StepPlan) -> Pending:
        """Accept a step. Waits neither for its computation nor for earlier steps.

        If it raises, the step counts as one that raised: see Pending.result.
        """
        ...

    def health(self) -> str | None:
        """The reason why nothing more can be computed, or None. Does not wait."""
        ...

    def close(self) -> None:
        """Free the device's memory. No other method is called afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Computation:
    """The Pending of an executor in this process: `result` computes the step on its own thread."""

    run: Callable[[StepPlan], StepResult]
    plan: StepPlan

    def result(self) -> StepResult:
        """Compute the step."""
        return self.run(self.plan)


class GrammarChecker(Protocol):
    """Tries grammars before their requests are admitted. Used in the engine's event loop."""

    async def check(self, grammar: Grammar) -> tuple[str, ...]:
        """Return the keywords that have no effect in a usable grammar.

        Raises InvalidRequestError (`param` is "grammar") for a grammar that cannot be used,
        OverloadedError if too many wait to be checked. Calls with the same grammar share the work.
        """
        ...

    def prepare(self) -> None:
        """Get ready for the first grammar in the background."""
        ...

    def close(self) -> None:
        """Free all resources. No other method is called afterwards."""
        ...


class Detokenizer(Protocol):
    """Turns one request's tokens into text as they come. Holds back text that may still change."""

    def add(self, token_ids: Sequence[int]) -> str:
        """Add tokens; returns the text that is final because of them."""
        ...

    def finish(self) -> str:
        """Return the text that was held back, as the last call. An incomplete character becomes
        U+FFFD."""
        ...


class Tokenizer(Protocol):
    """Converts text to token ids and back. Methods may be called from any thread."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_chars_per_token(self) -> int:
        """Maximum number of characters that one token stands for.

        Admission uses it to refuse prompts that are too long before they are tokenized.
        """
        ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def chat_format(self) -> ChatFormat | None:
        """The chat template; None if the model has none."""
        ...

    @property
    def special_token_texts(self) -> Mapping[str, str]:
        """Texts of the tokens that the model has: "bos_token", "eos_token", "unk_token" and
        "pad_token"."""
        ...

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text. If `parse_special` is False, even "<|im_end|>" is plain text."""
        ...

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, str]] = (),
    ) -> list[int]:
        """Token ids of a chat, formatted by the model's template.

        `tools` are functions in the shape of OpenAI's API, which the template shows if it can.
        `documents` are texts with the names that the template knows. Text in messages, tools and
        documents never becomes a special token. Raises InvalidRequestError when there is no
        template, it refuses the messages, or it cannot show documents.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token stands for. They need not be valid UTF-8."""
        ...

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A new incremental detokenizer for generated tokens. Its text excludes the prompt."""
        ...
