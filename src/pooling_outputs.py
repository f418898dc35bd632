"""Results of LLM.embed, encode and score. Names are those of vLLM; data are plain numbers here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .core.errors import RequestFailedError
from .core.outputs import RequestOutput
from .core.requests.pooling import PoolingParams

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """The result of `LLM.encode` for one prompt."""

    data: tuple[float, ...]
    """The embedding. vLLM has a tensor here: `torch.tensor(output.data)`."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The embedding of one prompt."""

    embedding: tuple[float, ...]
    """Has the length of the model's hidden state, or PoolingParams.dimensions."""

    @property
    def hidden_size(self) -> int:
        """The length of the embedding."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """The similarity of two texts."""

    score: float
    """The cosine of the angle between their embeddings, -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequestOutput(Generic[T]):
    """The result of `LLM.encode` for one prompt."""

    request_id: str
    """The id that the engine made; for a score those of both texts, joined with _."""
    outputs: T
    """The result itself: a PoolingOutput, EmbeddingOutput or ScoringOutput. Unlike
    RequestOutput.outputs it is not a list."""
    prompt_token_ids: tuple[int, ...]
    """The tokens of the text, after truncation."""
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache and were not computed."""
    finished: bool = True
    """Always True."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The result of `LLM.embed` for one prompt: `output.outputs.embedding`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The result of `LLM.score` for one pair of texts: `output.outputs.score`.

    `prompt_token_ids` are those of both texts, one after the other.
    """


def pooled(output: RequestOutput, params: PoolingParams) -> PoolingRequestOutput[PoolingOutput]:
    """The result of a request with `pooling`. Raises RequestFailedError if it ended too early."""
    if output.embedding is None:  # for example after --request-timeout
        why = output.outputs[0].stop_reason or output.outputs[0].finish_reason
        raise RequestFailedError(f"the prompt was not computed to its end: {why}")
    return PoolingRequestOutput(
        request_id=output.request_id,
        outputs=PoolingOutput(params.finish(output.embedding)),
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
    )


def embedded(found: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
    """The same result as an embedding."""
    return EmbeddingRequestOutput(
        request_id=found.request_id,
        outputs=EmbeddingOutput(found.outputs.data),
        prompt_token_ids=found.prompt_token_ids,
        num_cached_tokens=found.num_cached_tokens,
    )


def scored(
    first: PoolingRequestOutput[PoolingOutput], second: PoolingRequestOutput[PoolingOutput]
) -> ScoringRequestOutput:
    """The similarity of two texts, whose embeddings have the length 1."""
    pairs = zip(first.outputs.data, second.outputs.data, strict=True)
    return ScoringRequestOutput(
        request_id=f"{first.request_id}_{second.request_id}",
        outputs=ScoringOutput(sum(a * b for a, b in pairs)),
        prompt_token_ids=first.prompt_token_ids + second.prompt_token_ids,
        num_cached_tokens=first.num_cached_tokens + second.num_cached_tokens,
    )
