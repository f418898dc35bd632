"""Makes a draft model of a target: the target's own text, fewer layers, a smaller head, training.

Shape suffixes: d logits of the draft model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ...core.errors import ConfigError
from ...core.interfaces import ModelInfo, Progress
from ..device import has_bfloat16
from ..models.config import ModelConfig
from ..text.tokenizer import HFTokenizer
from ..weights.checkpoint import Checkpoint
from .generation import Answer, Executor, Generator
from .prompts import default_prompts
from .pruned import PrunedCheckpoint
from .saving import check_output, save_draft, to_hf_config
from .student import Student
from .training import MEASURED_TEMPERATURE, Acceptance, Lessons, measure, train

_HELD_OUT = 16
"""One of so many answers is for measuring only."""
_NUM_PROMPTS = 4096
_NUM_SLOTS = 64


class Target(Executor, Protocol):
    """What is asked of a ModelExecutor."""

    @property
    def info(self) -> ModelInfo: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe:
    """How a draft model is made. Raises ConfigError when a value cannot work."""

    num_layers: int = 2
    draft_vocab_size: int = 8192
    """How many tokens get logits; 0: all."""
    num_tokens: int = 120_000
    """Of the target's text."""
    num_steps: int = 400
    """Of training; 0 keeps the target's weights as they are."""
    max_len: int = 256
    """Most tokens of a prompt with its answer."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, flag, least in (
            ("num_layers", "--layers", 1),
            ("draft_vocab_size", "--draft-vocab-size", 0),
            ("num_tokens", "--tokens", 1),
            ("num_steps", "--steps", 0),
            ("max_len", "max_len", 16),
            ("seed", "--seed", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{flag} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeDraft:
    """What came out."""

    num_parameters: int
    layers: tuple[int, ...]
    before: Acceptance
    """On answers kept aside, of single drafts."""
    after: Acceptance
    num_measured: int
    """Tokens of these answers."""
    temperature: float = MEASURED_TEMPERATURE


def make_draft(
    checkpoint: Checkpoint,
    tokenizer: HFTokenizer,
    load_target: Callable[[], Target],
    output: Path,
    recipe: DraftRecipe,
    prompts: Sequence[str] | None,
    progress: Progress,
) -> MadeDraft:
    """Write a draft model to the directory `output`; `prompts` None: the built-in ones.

    The same result for the same arguments, machine and number of threads. Raises ConfigError for a
    target that cannot be written so, or too little text.
    """
    check_output(output)
    layers = choose_layers(checkpoint.config, recipe.num_layers)
    PrunedCheckpoint(checkpoint, layers, None)  # what it would refuse is better refused now
    to_hf_config(checkpoint.config, ())
    with closing(load_target()) as target:
        answers = _generate(tokenizer, target, recipe, prompts, progress)
    kept, held_out = _divide(answers)
    token_ids_d = _choose_tokens(kept, checkpoint, recipe.draft_vocab_size)
    student = Student(
        PrunedCheckpoint(checkpoint, layers, token_ids_d),
        torch.bfloat16 if has_bfloat16(torch.device("cpu")) else torch.float32,
    )
    vocab_size = checkpoint.config.vocab_size
    exam = Lessons(held_out, vocab_size, token_ids_d)
    before = measure(student, exam)
    train(student, Lessons(kept, vocab_size, token_ids_d), recipe.num_steps, recipe.seed, progress)
    after = measure(student, exam)
    save_draft(output, student, token_ids_d, tokenizer, checkpoint.eos_token_ids)
    return MadeDraft(
        num_parameters=student.decoder.num_parameters,
        layers=layers,
        before=before,
        after=after,
        num_measured=sum(len(answer.token_ids) for answer in held_out),
    )


def choose_layers(config: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """The first ones: what they give is what the layers after them were made for. With two of 30
    layers, 5 % of greedy drafts are right before any training; with the first and the last none.

    Raises ConfigError when the target has no more than that.
    """
    if num_layers >= config.num_layers:
        raise ConfigError(
            f"a draft of {num_layers} layers would be no smaller than the target, which has "
            f"{config.num_layers}: ask for fewer"
        )
    return tuple(range(num_layers))


def _generate(
    tokenizer: HFTokenizer,
    target: Target,
    recipe: DraftRecipe,
    prompts: Sequence[str] | None,
    progress: Progress,
) -> list[Answer]:
    texts = default_prompts(_NUM_PROMPTS, recipe.seed) if prompts is None else prompts
    generator = Generator(
        target,
        num_blocks=target.info.num_blocks,
        block_size=target.info.block_size,
        stop_token_ids=target.info.eos_token_ids,
        max_len=min(recipe.max_len, target.info.max_model_len),
        num_slots=_NUM_SLOTS,
        seed=recipe.seed,
    )
    prompt_ids = [_encode(tokenizer, text) for text in texts]
    return generator.answers(prompt_ids, recipe.num_tokens, progress)


def _encode(tokenizer: HFTokenizer, text: str) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def _divide(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """What to learn from, and what to measure with."""
    if len(answers) < 2:
        raise ConfigError(
            f"the target generated {len(answers)} answers and at least 2 are needed: ask for more "
            "tokens, or bring more prompts"
        )
    kept = [answer for i, answer in enumerate(answers) if (i + 1) % _HELD_OUT]
    held_out = [answer for i, answer in enumerate(answers) if not (i + 1) % _HELD_OUT]
    return kept, held_out or kept[-1:]


def _choose_tokens(
    answers: Sequence[Answer], checkpoint: Checkpoint, count: int
) -> torch.Tensor | None:
    """The tokens that the target expects most, and those that end an answer; ascending."""
    vocab_size = checkpoint.config.vocab_size
    if not 0 < count < vocab_size:
        return None
    mass = np.zeros(vocab_size)
    for answer in answers:
        np.add.at(mass, answer.likeliest_ids, np.exp(answer.likeliest_logprobs))
    mass[list(checkpoint.eos_token_ids)] = np.inf
    chosen = np.argsort(-mass, kind="stable")[:count]
    return torch.from_numpy(np.sort(chosen).astype(np.int64))
