"""The request body of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ...serving.reading import fields
from ...serving.reading.unknown_fields import Unsupported, UnsupportedFields
from .bodies import PromptItem


class EmbeddingsBody(fields.Sender, kw_only=True):
    """The body of POST /v1/embeddings. Inputs may be texts or token ids."""

    input: str | Annotated[list[PromptItem], Meta(min_length=1, max_length=fields.MAX_IDS)]
    model: fields.ModelName | None = None
    dimensions: fields.PositiveCount | None = None
    """The embedding is cut to this many numbers before it is normalized."""
    encoding_format: Literal["float", "base64"] | None = None
    # vLLM's additions
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    """False: the embedding keeps its length. Otherwise its length is 1."""

    UNSUPPORTED: ClassVar[UnsupportedFields] = {
        "embed_dtype": Unsupported("embeddings are float32", ("float32",)),
        "endianness": Unsupported("the lowest byte comes first", ("native", "little")),
        "messages": Unsupported("send texts as input"),
        "truncate_prompt_tokens": Unsupported("shorten the input"),
        "truncation_side": Unsupported("inputs are not truncated"),
        "use_activation": Unsupported("use normalize", (True,)),
    }
