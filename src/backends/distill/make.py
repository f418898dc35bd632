"""Makes a draft model of a target: a head or a few of its layers, trained on the target's text.

Shape suffixes: d logits of the draft model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...core.errors import ConfigError
from ...core.interfaces import Executor, Progress
from ..drafting.support import Speculation
from ..machine.device import has_bfloat16
from ..text.tokenizer import HFTokenizer
from ..weights.checkpoint import Checkpoint
from ..weights.config.model_config import ModelConfig
from .generation import Answer, Generator
from .head_student import begin_head
from .head_training import measure_head, train_head
from .layers_training import measure_layers, train_layers
from .prompts import default_prompts
from .pruned import PrunedCheckpoint
from .recording import HiddenRecorder
from .saving import check_output, save_draft, save_head, to_hf_config
from .student import Student
from .training import MEASURED_TEMPERATURE, Acceptance, LogitIndex

_HELD_OUT = 16
"""One in this many answers is held out for measuring."""
_NUM_PROMPTS = 4096
_NUM_SLOTS = 64
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe:
    """Settings for making a draft model. Raises ConfigError for a value out of range."""

    num_layers: int = 0
    """Number of the target's layers to keep; 0 makes a head on its hidden states instead."""
    draft_vocab_size: int = 8192
    """Number of tokens that get logits; 0 for all."""
    num_tokens: int = 120_000
    """Tokens of text that the target generates."""
    num_steps: int = 800
    """Training steps. With 0, layers stay the target's, and a head stays the least-squares fit."""
    max_len: int = 256
    """Maximum length of a prompt with its answer, in tokens."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, flag, least in (
            ("num_layers", "--layers", 0),
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
    """A summary of the draft model that was written."""

    num_parameters: int
    layers: tuple[int, ...]
    """Indices of the target's layers that were kept; empty for a head."""
    before: Acceptance
    """Acceptance on held-out answers before training."""
    after: Acceptance
    temperature: float = MEASURED_TEMPERATURE


def make_draft(
    checkpoint: Checkpoint,
    tokenizer: HFTokenizer,
    load_target: Callable[[Speculation | None], Executor],
    output: Path,
    recipe: DraftRecipe,
    prompts: Sequence[str] | None,
    progress: Progress,
) -> MadeDraft:
    """Make a draft model and write it to the directory `output`. `prompts` None uses built-in ones.

    The result is the same for the same arguments, machine and number of threads. Raises ConfigError
    if a draft model of this target cannot be written, or the target generates too little text.
    """
    check_output(output)
    is_head = not recipe.num_layers
    layers = () if is_head else choose_layers(checkpoint.config, recipe.num_layers)
    if not is_head:  # raises for an unsuitable target now, before minutes of work
        PrunedCheckpoint(checkpoint, layers, None)
        to_hf_config(checkpoint.config, ())
    recorder = HiddenRecorder() if is_head else None
    with closing(load_target(recorder)) as target:
        answers = _generate(tokenizer, target, recipe, prompts, progress, recorder)
    texts = _divide(answers)
    token_ids_d = _choose_tokens(texts.learned, checkpoint, recipe.draft_vocab_size)
    if is_head:
        return _make_head(checkpoint, output, recipe, texts, token_ids_d, progress)
    return _make_layers(checkpoint, tokenizer, output, recipe, layers, texts, token_ids_d, progress)


def _make_head(
    checkpoint: Checkpoint,
    output: Path,
    recipe: DraftRecipe,
    texts: _Texts,
    token_ids_d: torch.Tensor | None,
    progress: Progress,
) -> MadeDraft:
    config = checkpoint.config
    name = _EMBEDDING if _is_tied(checkpoint) else "lm_head.weight"
    kept_d = torch.arange(config.vocab_size) if token_ids_d is None else token_ids_d
    student = begin_head(
        config,
        checkpoint.tensor(_EMBEDDING).float(),
        checkpoint.tensor(name).index_select(0, kept_d).float(),
        texts.learned,
        seed=recipe.seed,
        product_dtype=_product_dtype(),
        progress=progress,
    )
    index = LogitIndex(config.vocab_size, kept_d)
    before = measure_head(student, texts.held_out, index)
    train_head(student, texts.learned, index, recipe.num_steps, recipe.seed, progress)
    after = measure_head(student, texts.held_out, index)
    save_head(output, student, kept_d, checkpoint.name)
    return MadeDraft(
        num_parameters=student.head.num_parameters, layers=(), before=before, after=after
    )


def _make_layers(
    checkpoint: Checkpoint,
    tokenizer: HFTokenizer,
    output: Path,
    recipe: DraftRecipe,
    layers: tuple[int, ...],
    texts: _Texts,
    token_ids_d: torch.Tensor | None,
    progress: Progress,
) -> MadeDraft:
    student = Student(PrunedCheckpoint(checkpoint, layers, token_ids_d), _product_dtype())
    index = LogitIndex(checkpoint.config.vocab_size, token_ids_d)
    before = measure_layers(student, texts.held_out, index)
    train_layers(student, texts.learned, index, recipe.num_steps, recipe.seed, progress)
    after = measure_layers(student, texts.held_out, index)
    save_draft(output, student, token_ids_d, tokenizer, checkpoint.eos_token_ids)
    return MadeDraft(
        num_parameters=student.decoder.num_parameters, layers=layers, before=before, after=after
    )


def _is_tied(checkpoint: Checkpoint) -> bool:
    """Whether the head is the embedding. A head in the file wins, as it does in the loader."""
    names = checkpoint.tensor_names()
    return checkpoint.config.tie_word_embeddings and "lm_head.weight" not in names


def _product_dtype() -> torch.dtype:
    return torch.bfloat16 if has_bfloat16(torch.device("cpu")) else torch.float32


def choose_layers(config: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """The target's first `num_layers` layers.

    With the first two of 30 layers, 5 % of greedy drafts are right before any training; with the
    first and the last layer, none. Raises ConfigError unless the target has more layers than that.
    """
    if num_layers >= config.num_layers:
        raise ConfigError(
            f"a draft model of {num_layers} layers would be no smaller than the target, which has "
            f"{config.num_layers}: ask for fewer"
        )
    return tuple(range(num_layers))


def _generate(
    tokenizer: HFTokenizer,
    target: Executor,
    recipe: DraftRecipe,
    prompts: Sequence[str] | None,
    progress: Progress,
    recorder: HiddenRecorder | None,
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
        recorder=recorder,
    )
    prompt_ids = [_encode(tokenizer, text) for text in texts]
    return generator.answers(prompt_ids, recipe.num_tokens, progress)


def _encode(tokenizer: HFTokenizer, text: str) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Texts:
    """Answers to train on, and answers to measure with."""

    learned: Sequence[Answer]
    held_out: Sequence[Answer]


def _divide(answers: Sequence[Answer]) -> _Texts:
    """Hold out some answers. Answers of one token are dropped: nothing follows the token."""
    usable = [answer for answer in answers if len(answer.token_ids) > 1]
    if len(usable) < 2:
        raise ConfigError(
            f"only {len(usable)} of the generated answers have several tokens, and at least 2 are "
            "needed: ask for more tokens, or give more prompts"
        )
    learned = [answer for i, answer in enumerate(usable) if (i + 1) % _HELD_OUT]
    held_out = [answer for i, answer in enumerate(usable) if not (i + 1) % _HELD_OUT]
    return _Texts(learned=learned, held_out=held_out or learned[-1:])


def _choose_tokens(
    answers: Sequence[Answer], checkpoint: Checkpoint, count: int
) -> torch.Tensor | None:
    """The `count` tokens with the highest total probability, and end tokens; ascending. None for
    all."""
    vocab_size = checkpoint.config.vocab_size
    if not 0 < count < vocab_size:
        return None
    mass = np.zeros(vocab_size)
    for answer in answers:
        np.add.at(mass, answer.likeliest_ids, np.exp(answer.likeliest_logprobs))
    mass[list(checkpoint.eos_token_ids)] = np.inf
    chosen = np.argsort(-mass, kind="stable")[:count]
    return torch.from_numpy(np.sort(chosen).astype(np.int64))
