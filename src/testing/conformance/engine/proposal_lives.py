"""Lives of requests as a speculator sees them: batches for `propose`, the same in every run.

The texts repeat themselves, so that drafts can be right. They do not depend on the answers, so that
several speculators can get the same batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ....core.contract.providers.speculation import ProposalBatch, ProposalRequest
from ....core.requests.sampling_params import SamplingParams
from .workload import VOCAB_SIZE

MAX_DRAFT_TOKENS = 8
_TOKENS = (0, 1, 2, 3, 5, 8, 250, VOCAB_SIZE - 2, VOCAB_SIZE - 1)


@dataclass(slots=True)
class _Life:
    text: tuple[int, ...]
    num_prompt_tokens: int
    num_known: int = field(init=False)
    is_away: bool = False
    """Preempted: the speculator saw it end, and will see it start again."""

    def __post_init__(self) -> None:
        self.num_known = self.num_prompt_tokens


def random_calls(num_calls: int = 120, *, seed: int = 1) -> list[ProposalBatch]:
    """Batches with requests that start, pause, are preempted, return and end. Ids are reused."""
    rng = random.Random(seed)
    lives: dict[str, _Life] = {}
    calls = []
    for _ in range(num_calls):
        ended, started = _come_and_go(rng, lives)
        here = [engine_id for engine_id, life in lives.items() if not life.is_away]
        asked = [engine_id for engine_id in here if rng.random() < 0.8]
        rng.shuffle(asked)
        for engine_id in here:
            life = lives[engine_id]
            life.num_known = min(life.num_known + rng.choice((1, 1, 2, 5)), len(life.text))
        calls.append(
            ProposalBatch(
                requests=tuple(_ask(rng, engine_id, lives[engine_id]) for engine_id in asked),
                ended=tuple(ended),
                started=tuple(started),
                token_budget=rng.choice((0, 16, 256)),
            )
        )
    return calls


def one_life(engine_id: str, seed: int, *, num_calls: int = 12) -> list[ProposalBatch]:
    """Batches with a single request from its start. The caller adds its end."""
    rng = random.Random(seed)
    life = _new_life(rng)
    calls = []
    for i in range(num_calls):
        life.num_known = min(life.num_known + rng.randint(1, 4), len(life.text))
        request = _ask(rng, engine_id, life)
        calls.append(ProposalBatch(requests=(request,), started=() if i else (engine_id,)))
    return calls


def end_of(*engine_ids: str) -> ProposalBatch:
    """A batch without requests to draft for, in which these requests end."""
    return ProposalBatch(requests=(), ended=engine_ids)


def only(engine_id: str, calls: Sequence[ProposalBatch]) -> list[ProposalBatch]:
    """The same calls, without all other requests."""
    return [
        replace(
            call,
            requests=tuple(r for r in call.requests if r.engine_id == engine_id),
            ended=tuple(i for i in call.ended if i == engine_id),
            started=tuple(i for i in call.started if i == engine_id),
        )
        for call in calls
    ]


def _come_and_go(rng: random.Random, lives: dict[str, _Life]) -> tuple[list[str], list[str]]:
    """Ids of the requests that end and start in this call. An id may be in both lists."""
    ended, started = [], []
    for engine_id, life in list(lives.items()):
        if life.is_away:
            if rng.random() < 0.4:
                life.is_away = False
                started.append(engine_id)
        elif life.num_known == len(life.text) or rng.random() < 0.03:
            ended.append(engine_id)
            del lives[engine_id]
        elif rng.random() < 0.06:
            ended.append(engine_id)
            life.is_away = rng.random() < 0.7
            started += [] if life.is_away else [engine_id]  # preempted and resumed in one step
    while len(lives) < 5 and rng.random() < 0.5:
        engine_id = next(name for i in range(6) if (name := f"life-{i}") not in lives)
        lives[engine_id] = _new_life(rng)
        started.append(engine_id)
    return ended, started


def _new_life(rng: random.Random) -> _Life:
    """A text of repeated phrases, with some new ones."""
    phrases = [_phrase(rng) for _ in range(4)]
    text: list[int] = []
    while len(text) < 90:
        text += rng.choice(phrases) if rng.random() < 0.8 else _phrase(rng)
    return _Life(text=tuple(text), num_prompt_tokens=rng.choice((1, 2, 20, 60)))


def _phrase(rng: random.Random) -> list[int]:
    return [rng.choice(_TOKENS) for _ in range(rng.randint(1, 9))]


def _ask(rng: random.Random, engine_id: str, life: _Life) -> ProposalRequest:
    return ProposalRequest(
        engine_id=engine_id,
        token_ids=life.text[: life.num_known],
        num_prompt_tokens=life.num_prompt_tokens,
        sampling_params=SamplingParams(),
        max_draft_tokens=rng.randint(1, MAX_DRAFT_TOKENS),
    )
