"""A random model of two layers, run by transformers and by the shipped engine, step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import transformers

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.models.base import ModelImpl
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.config.kv_groups import group_layers
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Preempted, StepDone
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.engine.request import Request
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import ModelInfo
from tokenmill.core.plan import CopyDirection
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.testing.engine_driver import EngineDriver

from ..backends.model_engine import make_driver, make_request
from ..backends.tiny import CONFIG as TINY
from ..backends.tiny import GREEDY
from .comparison import Served
from .reference import ReferenceCase, continue_greedily
from .settings import Setting

CONFIG = replace(TINY, head_size=16)  # the least that the native kernels take
CHECKPOINT = random_checkpoint(CONFIG, seed=0)
NUM_TOKENS = 32
AMPLE_TOKENS = 2048
"""Room in the KV cache for all requests at once."""
STARVED_TOKENS = 224
"""Room for two of the longest requests."""
ARRIVALS_PER_STEP = 2
LENGTHS_ALONE = (1, 2, 3, 7, 8, 9, 15, 16, 25, 33, 64, 90)
QUICK_SAMPLE = 10
"""Prompts of a test in `make test`: enough that memory is short and beginnings are shared."""


class Watcher:
    """An observer that keeps how requests were preempted, and how drafts did."""

    def __init__(self) -> None:
        self.modes: list[str] = []
        self.num_draft_tokens = self.num_accepted_tokens = 0

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.num_draft_tokens += event.num_draft_tokens
        self.num_accepted_tokens += event.num_accepted_tokens

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self.modes.append(event.mode)


def make_prompts() -> list[tuple[int, ...]]:
    """Lengths from 1 to 90 tokens; the second half of the prompts share one of two beginnings."""
    rng = random.Random(8)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(CONFIG.vocab_size), k=length))

    beginnings = draw(48), draw(37)
    alone = [draw(length) for length in LENGTHS_ALONE]
    shared = [beginnings[i % 2] + draw(i) for i in (0, 1, 2, 3, 5, 8, 13, 16, 24, 31)]
    return [*alone, *shared]


def make_reference(checkpoint: Checkpoint = CHECKPOINT) -> Any:
    """transformers' Llama with the very same weights."""
    own = checkpoint.config
    config = transformers.LlamaConfig(
        vocab_size=own.vocab_size,
        hidden_size=own.hidden_size,
        intermediate_size=own.intermediate_size,
        num_hidden_layers=own.num_layers,
        num_attention_heads=own.num_heads,
        num_key_value_heads=own.num_kv_heads,
        head_dim=own.head_size,
        max_position_embeddings=own.max_position_embeddings,
        rms_norm_eps=own.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": own.rope.theta},
        tie_word_embeddings=own.tie_word_embeddings,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.tensor_names()})
    return model


def make_cases(model: Any) -> list[ReferenceCase]:
    prompts = make_prompts()
    outputs = continue_greedily(model, prompts, NUM_TOKENS)
    names = [f"{len(prompt)} tokens" for prompt in prompts]
    return list(map(ReferenceCase, names, prompts, outputs))


def shuffled(setting: Setting, cases: Sequence[ReferenceCase]) -> list[ReferenceCase]:
    """All of the cases, in another order for each setting."""
    return random.Random(str(setting)).sample(cases, len(cases))


def sample(setting: Setting, cases: Sequence[ReferenceCase]) -> list[ReferenceCase]:
    """Some of the cases, others for each setting; half of them share their beginnings."""
    rng, half = random.Random(str(setting)), QUICK_SAMPLE // 2
    alone, shared = cases[: len(LENGTHS_ALONE)], cases[len(LENGTHS_ALONE) :]
    chosen = [*rng.sample(alone, half), *rng.sample(shared, half)]
    return rng.sample(chosen, len(chosen))


def serve(
    setting: Setting,
    cases: Sequence[ReferenceCase],
    checkpoint: Checkpoint = CHECKPOINT,
    *,
    plugins: Sequence[object] = (),
    sampling: SamplingParams = GREEDY,
    impl: ModelImpl | None = None,
    **options: Any,
) -> Served:
    """Let the cases arrive one after the other; the books are checked after every step.

    `plugins` are added to the shipped ones; `options` are the engine's, beside and above those of
    the setting.
    """
    num_pool_tokens = STARVED_TOKENS if setting.is_starved else AMPLE_TOKENS
    num_groups = len(group_layers(checkpoint.config, None).windows)
    of_toy = {
        "device": "cpu",
        "num_gpu_blocks_override": num_groups * num_pool_tokens // setting.block_size,
        "swap_space": 2**-8,
    }
    config = EngineConfig(**of_toy | setting.options() | options)
    watcher = Watcher()
    host = PluginHost.load(config, extra=[watcher, *plugins])
    driver = make_driver(checkpoint, config, host, host.speculator, impl)
    return drive(driver, watcher, config, cases, sampling)


def drive(
    driver: EngineDriver,
    watcher: Watcher,
    config: EngineConfig,
    cases: Sequence[ReferenceCase],
    sampling: SamplingParams = GREEDY,
) -> Served:
    """Let the cases arrive one after the other. `watcher` observes the driver's engine."""
    info = driver.executor.info
    requests = [_make_request(case, info, config, sampling) for case in cases]
    driver.run(requests, per_step=ARRIVALS_PER_STEP)
    num_swap_ins = sum(c.direction is CopyDirection.IN for p in driver.plans for c in p.copies)
    num_swaps = watcher.modes.count("swap")
    # Blocks that are still in the prefix cache need no copy back, but never all of all requests.
    assert (num_swap_ins > 0) is (num_swaps > 0)
    return Served(
        attention_backend=info.attention_backend,
        token_ids=[tuple(r.token_ids[r.num_prompt_tokens :]) for r in requests],
        num_preempted=sum(r.num_preemptions > 0 for r in requests),
        num_preemptions=len(watcher.modes),
        num_swaps=num_swaps,
        num_hit_tokens=sum(r.num_cached_tokens for r in requests),
        num_draft_tokens=watcher.num_draft_tokens,
        num_accepted_tokens=watcher.num_accepted_tokens,
    )


def _make_request(
    case: ReferenceCase, info: ModelInfo, config: EngineConfig, sampling: SamplingParams
) -> Request:
    params = sampling.with_changes(max_tokens=len(case.token_ids), ignore_eos=True)
    name, seed = f"{case.name} {id(case)}", sampling.seed or 0
    return make_request(name, case.prompt_token_ids, params, seed, info=info, config=config)
