"""The contract of logits processors: they change the logits of the requests that ask for it.

Shape suffixes: g rows of one call, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ....core.contract.providers.logits_processor import ProcessorClass
from ....core.interfaces import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSpec:
    """The logits that a processor gets, and the model's tokens. Logits are float32."""

    vocab_size: int
    """Logits of a row. The tokenizer may have fewer tokens."""
    tokenizer: Tokenizer
    """The model's: `encode` and `token_bytes` say which tokens a text is, and the reverse. Look up
    what is needed in `__init__` or `begin`: `apply` is on the way of every token."""
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedRow:
    """One row of logits, for the token after `token_ids`."""

    state: Any
    """The object that `begin` returned for the request."""
    token_ids: Sequence[int]
    """All tokens before: the prompt, the answer so far and the drafts before this row."""
    num_prompt_tokens: int


class LogitsProcessor(ProcessorClass, Protocol):
    """Changes logits, on the device thread of a worker. The factory returns its class.

    The changed logits must depend only on the request's arguments and on the tokens of the row. So
    answers stay the same with speculation, preemption and in any batch. min_tokens, allowed tokens,
    bad words and grammars are applied afterwards.
    """

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        """Return every reason why the processor cannot serve this model; empty if it can."""
        ...

    def __init__(self, spec: ProcessorSpec) -> None: ...

    def begin(self, arguments: Mapping[str, Any]) -> Any:
        """Return what `apply` needs of a request whose arguments `check` has accepted.

        When: before its first row, and again after a preemption. On error: that request ends.
        """
        ...

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        """Change the logits in place, one row per entry of `rows`.

        When: once per step, with all rows of all requests that use the processor. At least one
        logit of each row must stay finite, and none may become NaN or plus infinity. On error: each
        row is tried again alone, and only the requests that fail then end. Cost: the device waits
        for it; steps without such requests do not call it.
        """
        ...
