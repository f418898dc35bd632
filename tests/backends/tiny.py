"""A tiny random model, and a hand-driven runner: tests say who computes how much in a step."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.running.proposing import Propose
from tokenmill.backends.running.runner import ModelRunner
from tokenmill.backends.state.kv_cache import KVCache, allocate
from tokenmill.backends.weights.config.kv_groups import one_group
from tokenmill.backends.weights.config.model_config import ModelConfig
from tokenmill.core.interfaces import no_progress
from tokenmill.core.plan import BlockCopies, Grant, RequestStart, StepPlan, StepResult
from tokenmill.core.requests.sampling_params import SamplingParams

from .models.dense import compute_logits

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    intermediate_size=48,
    vocab_size=192,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
)
GREEDY = SamplingParams(temperature=0)
CPU = torch.device("cpu")


@functools.cache
def decoder() -> Decoder:
    return load_decoder(
        random_checkpoint(CONFIG, 5), dtype=torch.float32, device=CPU, progress=no_progress
    )


def attention_spec(block_size: int) -> AttentionSpec:
    return AttentionSpec(
        num_heads=CONFIG.num_heads,
        num_kv_heads=CONFIG.num_kv_heads,
        head_size=CONFIG.head_size,
        block_size=block_size,
        dtype=torch.float32,
        device=CPU,
        scale=CONFIG.attention_scale,
    )


def attention(block_size: int) -> TorchAttention:
    return TorchAttention(attention_spec(block_size))


def kv_cache(block_size: int, num_blocks: int, num_host_blocks: int = 0) -> KVCache:
    return allocate(
        attention(block_size),
        groups=one_group(CONFIG),
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        block_size=block_size,
        dtype=torch.float32,
        device=CPU,
    )


def make_prompt(length: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(CONFIG.vocab_size), k=length))


@functools.cache
def dense_tokens(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """The greedy continuation, computed anew for every token, without a cache."""
    token_ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = compute_logits(decoder(), torch.tensor(token_ids))
            token_ids.append(int(logits[-1].argmax()))
    return tuple(token_ids[len(prompt) :])


class Driver:
    """Makes plans for a runner by hand, with blocks in random order."""

    def __init__(
        self,
        *,
        block_size: int = 8,
        num_blocks: int = 128,
        num_host_blocks: int = 0,
        model: Decoder | None = None,
        propose: Propose | None = None,
        needs_hidden_states: bool = False,
    ) -> None:
        self.block_size = block_size
        self.runner = ModelRunner(
            model or decoder(),
            attention(block_size),
            kv_cache(block_size, num_blocks, num_host_blocks),
            propose=propose,
            needs_hidden_states=needs_hidden_states,
        )
        self.proposed: dict[str, int] = {}
        """How many drafts the runner holds."""
        self.known: dict[str, list[int]] = {}
        self.blocks: dict[str, list[int]] = {}
        self.free = random.Random(7).sample(range(num_blocks), num_blocks)
        self.computed: dict[str, int] = {}
        self.starts: list[RequestStart] = []
        """Of the next plan."""
        self._ended: list[str] = []
        self._cached: dict[str, list[int]] = {}
        self._step_id = 0

    def add(
        self,
        engine_id: str,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        seed: int = 0,
        num_prompt_tokens: int | None = None,
        stop_token_ids: tuple[int, ...] = (),
        num_cached_tokens: int = 0,
        cached_blocks: Sequence[int] = (),
    ) -> None:
        """Start a request with the next plan; `prompt` may hold generated tokens at its end."""
        self.known[engine_id] = list(prompt)
        self.computed[engine_id] = num_cached_tokens
        self.blocks[engine_id] = []
        self._cached[engine_id] = list(cached_blocks)
        self.starts.append(
            RequestStart(
                engine_id=engine_id,
                token_ids=tuple(prompt),
                num_prompt_tokens=num_prompt_tokens or len(prompt),
                sampling_params=params,
                seed=seed,
                stop_token_ids=stop_token_ids,
            )
        )

    def end(self, engine_id: str) -> None:
        """Forget a request with the next plan."""
        self._ended.append(engine_id)
        del self.known[engine_id], self.computed[engine_id]
        self.proposed.pop(engine_id, None)
        self.free += self.blocks.pop(engine_id)

    def plan(
        self,
        amounts: Mapping[str, int | None],
        copies: tuple[BlockCopies, ...] = (),
        num_in_flight: int = 0,
        max_draft_tokens: Mapping[str, int] | None = None,
        num_lookahead_tokens: int = 0,
        most_drafts: int = 0,
    ) -> StepPlan:
        """Grants in the order of `amounts`; None: all that is not computed yet, and at most so many
        drafts."""
        grants = []
        for engine_id, amount in amounts.items():
            known = len(self.known[engine_id]) + num_in_flight
            left = known - self.computed[engine_id]
            samples = amount in (None, left)
            num_drafts = min(most_drafts, self.proposed.pop(engine_id, 0)) if samples else 0
            grants.append(
                self._grant(
                    engine_id,
                    num_tokens=(amount or left) + num_drafts,
                    samples=samples,
                    num_draft_tokens=num_drafts,
                    max_draft_tokens=(max_draft_tokens or {}).get(engine_id, 0),
                    num_lookahead_tokens=num_lookahead_tokens if samples else 0,
                )
            )
        self._step_id += 1
        plan = StepPlan(
            step_id=self._step_id,
            ended=tuple(self._ended),
            starts=tuple(self.starts),
            copies=copies,
            grants=tuple(grants),
        )
        self._ended, self.starts = [], []
        return plan

    def run(self, plan: StepPlan) -> StepResult:
        result = self.runner.run(plan)
        assert result.step_id == plan.step_id and len(result.token_ids) == len(plan.grants)
        for i, (grant, token_ids) in enumerate(zip(plan.grants, result.token_ids, strict=True)):
            self.known[grant.engine_id] += token_ids
            if result.num_proposed_tokens is not None:
                self.proposed[grant.engine_id] = result.num_proposed_tokens[i]
            if grant.gives_back and token_ids:
                self.computed[grant.engine_id] -= grant.num_draft_tokens + 1 - len(token_ids)
                self._give_back(grant.engine_id)
        return result

    def step(self, amounts: Mapping[str, int | None]) -> StepResult:
        return self.run(self.plan(amounts))

    def generate(self, num_tokens: int, *request_ids: str) -> list[tuple[int, ...]]:
        """Compute all that is left of the prompts, then decode; the new tokens of each."""
        begin = {i: len(self.known[i]) for i in request_ids}
        for _ in range(num_tokens):
            self.step(dict.fromkeys(request_ids))
        return [tuple(self.known[i][begin[i] :]) for i in request_ids]

    def _grant(
        self, engine_id: str, *, num_tokens: int, num_lookahead_tokens: int, **details: Any
    ) -> Grant:
        start = self.computed[engine_id]
        self.computed[engine_id] += num_tokens
        blocks = self.blocks[engine_id]
        new = self._cached.pop(engine_id, [])
        num_needed = self._num_blocks(self.computed[engine_id] + num_lookahead_tokens)
        new += [self.free.pop() for _ in range(num_needed - len(blocks) - len(new))]
        blocks += new
        return Grant(
            engine_id=engine_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=(tuple(new),),
            num_lookahead_tokens=num_lookahead_tokens,
            **details,
        )

    def _give_back(self, engine_id: str) -> None:
        """The freed blocks are the next to be taken."""
        num_tokens = len(self.known[engine_id]) + self.proposed.get(engine_id, 0)
        blocks = self.blocks[engine_id]
        self.free += blocks[self._num_blocks(num_tokens) :]
        del blocks[self._num_blocks(num_tokens) :]

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def generate_alone(
    prompt: Sequence[int], params: SamplingParams, num_tokens: int, seed: int = 0
) -> tuple[int, ...]:
    """What a request gets with nobody beside it."""
    driver = Driver()
    driver.add("alone", prompt, params, seed=seed)
    return driver.generate(num_tokens, "alone")[0]
