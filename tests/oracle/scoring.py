"""How likely a text is: by the engine's executor, in steps of many sizes, and by transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch

from tokenmill.assembly import build_parts
from tokenmill.backends.running.runner import StepModel
from tokenmill.backends.state.input_batch import InputBatch
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import Executor, no_progress
from tokenmill.core.plan import Grant, RequestStart, StepPlan
from tokenmill.core.requests.sampling_params import SamplingParams

STEP_SIZES = (64, 1, 1, 1, 1, 1, 1, 58)
"""Tokens of the steps, in turns: chunks of a prompt, whole blocks and not, and decodes."""
BLOCK_SIZE = 16


class AllRows:
    """A step's model that scores every row, not only sampled ones."""

    def __init__(self, model: StepModel, token_ids: Sequence[int]) -> None:
        self._model = model
        self._following_t = torch.tensor(token_ids[1:])
        self.logprobs = torch.empty(0, dtype=torch.float64)

    def logits(self, batch: InputBatch) -> torch.Tensor:
        """See StepModel."""
        all_rows_t = torch.arange(batch.token_ids_t.shape[0])
        logits_tv = self._model.logits(replace(batch, sampled_rows_r=all_rows_t))
        following_t = self._following_t[len(self.logprobs) :][: len(logits_tv)]
        self.logprobs = torch.cat((self.logprobs, logprobs_of(logits_tv, following_t)))
        return logits_tv.index_select(0, batch.sampled_rows_r)


def logprobs_of_executor(token_ids: Sequence[int], **options: Any) -> torch.Tensor:
    """Log-probability of each token but the first, by the default model; `options` are those of
    the engine. The executor, with its own choice of kernels, computes plans as the engine makes
    them."""
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    config = EngineConfig(
        device="cpu", block_size=BLOCK_SIZE, num_gpu_blocks_override=num_blocks, **options
    )
    executor: Any = build_parts(config, no_progress).executor
    model = executor._runner._model = AllRows(executor._runner._model, token_ids)
    try:
        compute(executor, token_ids)
    finally:
        executor.close()
    return model.logprobs


def logprobs_of_transformers(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """The same by transformers, the whole text in one pass."""
    with torch.inference_mode():
        logits_tv = model(torch.tensor([list(token_ids)])).logits[0]
    return logprobs_of(logits_tv, torch.tensor(token_ids[1:]))


def logprobs_of(logits_tv: torch.Tensor, following_t: torch.Tensor) -> torch.Tensor:
    """What each row says of the token that follows it; nothing follows the last row of all."""
    found_tv = logits_tv[: len(following_t)].float().log_softmax(dim=-1)
    return found_tv.gather(1, following_t.unsqueeze(1)).squeeze(1).double()


def compute(executor: Executor, token_ids: Sequence[int]) -> None:
    """All tokens of one request; nothing is sampled."""
    start = RequestStart(
        engine_id="text",
        token_ids=tuple(token_ids),
        num_prompt_tokens=len(token_ids),
        sampling_params=SamplingParams(),
        seed=0,
        stop_token_ids=(),
    )
    for step_id, grant in enumerate(grants(len(token_ids))):
        starts = () if step_id else (start,)
        executor.run(StepPlan(step_id=step_id, starts=starts, grants=(grant,)))


def grants(num_tokens: int) -> Iterator[Grant]:
    """One per step. Blocks are taken from the last one down, so that no two follow each other."""
    num_blocks, begin = -(-num_tokens // BLOCK_SIZE), 0
    for size in cycle(STEP_SIZES):
        end = min(begin + size, num_tokens)
        held, needed = -(-begin // BLOCK_SIZE), -(-end // BLOCK_SIZE)
        yield Grant(
            engine_id="text",
            start=begin,
            num_tokens=end - begin,
            new_block_ids=(tuple(num_blocks - 1 - i for i in range(held, needed)),),
            samples=False,
        )
        if end == num_tokens:
            return
        begin = end
