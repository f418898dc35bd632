"""Runs a speculator or draft length policy in an engine that verifies drafts, with few tokens."""

from __future__ import annotations

from dataclasses import replace

from ....core.outputs import FinishReason
from .bench import EngineBench
from .checks import check_tokens_of
from .drafting import KIND
from .workload import SHAPES as OTHER_SHAPES
from .workload import EngineShape, Job, random_jobs

_VOCAB_SIZE = 3
"""Small enough for drafts to be often right and often wrong."""
SHAPES = tuple(
    replace(shape, vocab_size=_VOCAB_SIZE, num_speculative_tokens=number)
    for shape, number in zip(OTHER_SHAPES, (1, 8, 4, 5), strict=True)
)
_TURNS = 2000


def check_tokens(given: object, shape: EngineShape) -> None:
    """Check that every request ends with exactly the tokens that it would get without drafts."""
    bench = serve(given, shape)
    for engine_id in bench.tokens:
        assert bench.reasons.get(engine_id) is FinishReason.LENGTH, f"{engine_id} never ended"
    check_tokens_of(bench)


def check_answers(given: object, shape: EngineShape) -> None:
    """Check that the engine did not have to drop any draft."""
    failures = serve(given, shape).failures.describe("propose")
    assert not failures, f"the engine dropped drafts:\n{failures}"


def serve(given: object, shape: EngineShape, *, kind: str = KIND) -> EngineBench:
    """Serve a random workload with `given`, a provider of this kind; returns the engine."""
    bench = EngineBench(kind, given, shape)
    bench.run([_with_few_tokens(job) for job in random_jobs(num_jobs=30)], turns=_TURNS)
    return bench


def _with_few_tokens(job: Job) -> Job:
    return replace(job, prompt=tuple(token % _VOCAB_SIZE for token in job.prompt))
