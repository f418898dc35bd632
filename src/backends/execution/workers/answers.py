"""Reads and compares the answers of workers, however they arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....core.errors import ConfigError, DeviceError
from ....core.interfaces import ModelInfo
from ....core.plan import StepResult
from ....core.regions import NO_REGIONS, Regions
from ....core.settings.declaration import flag
from ..identity import Identity, differences
from .messages import LOST, RAISED, Loaded, decode_raised, decode_result
from .watch import Watch, Watched

LAG_SECONDS = 1.0
"""Maximum time between the answers of two ranks to a step that raises on all ranks."""
Answer = tuple[bytes, bytes]
"""Kind and content of a message from a worker."""


class WorkerStepError(RuntimeError):
    """A step raised in a worker. The worker's traceback is a note of this exception."""


def agree(
    identity: Identity,
    answers: Sequence[Loaded],
    num_stages: int = 1,
    places: Sequence[str] | None = None,
) -> ModelInfo:
    """The model's info, from the answers of all ranks that have loaded it. `places`: see Watched.

    Raises ConfigError with all differences between a worker and the engine.
    """
    names = [f"worker {i}{place}" for i, place in enumerate(places or [""] * len(answers))]
    for name, answer in zip(names, answers, strict=True):
        if found := list(differences(identity, answer.identity)):
            raise ConfigError(f"{name} differs from the engine: {'; '.join(found)}")
    infos = [answer.info for answer in answers]
    for rank, info in enumerate(infos):
        for field in ("device", "dtype", "kv_cache_dtype"):  # chosen by each machine for itself
            first, own = getattr(infos[0], field), getattr(info, field)
            if first != own:
                raise ConfigError(
                    f"{names[0]} has {field} {first}, and {names[rank]} has {own}: set "
                    f"{flag(field)} instead of auto"
                )
    if any(info.media != infos[0].media for info in infos[: len(infos) // num_stages]):
        raise ConfigError(
            "the workers differ in what they know about images: give all of them the same files of "
            "the model"
        )
    if any(info.kv_windows != infos[0].kv_windows for info in infos):
        raise ConfigError(
            "the stages have different groups of layers: the speculative method must load the same "
            "draft model in all of them, or none"
        )
    return replace(
        infos[0],
        num_stages=num_stages,
        drafts_need_lookahead=any(info.drafts_need_lookahead for info in infos),
        num_blocks=min(info.num_blocks for info in infos),
        num_host_blocks=min(info.num_host_blocks for info in infos),
        kv_bytes_per_block=sum(info.kv_bytes_per_block for info in infos),
    )


class RankAnswers:
    """Joins the answers of all ranks to a step, and keeps the results that earlier stages need."""

    def __init__(self, links: Sequence[Watched], watch: Watch, num_stages: int) -> None:
        """`links`: one per rank. The ranks of the last stage sample, and must sample the same."""
        self._links, self._watch = links, watch
        self.num_early = len(links) - len(links) // num_stages
        """Number of ranks before the last stage. They get the results below before each plan."""
        self.results: deque[bytes] = deque()
        """The last stage's results since the last plan."""

    def finish(self, answers: Sequence[Answer]) -> StepResult:
        """The result of a step, from the answers in the order of the ranks.

        Raises WorkerStepError, or DeviceError if the device is lost or the ranks disagree.
        """
        found = [_read_answer(rank, answer) for rank, answer in enumerate(answers)]
        first, *others = found[self.num_early :]
        if any(other.token_ids != first.token_ids for other in others):
            reason = "and another worker computed different tokens"
            raise self._watch.fail(self._links[self.num_early], reason)
        times = tuple([one for result in found for one in result.rank_times])
        encoding = max(result.encoder_seconds for result in found)  # the first stage's
        first = replace(
            first, rank_times=times, encoder_seconds=encoding, regions=_regions_of(found)
        )
        if self.num_early:
            _, message = answers[self.num_early]
            self.results.append(message)
            stages = found[:: len(found) - self.num_early]  # the first rank of each stage
            counts = zip(*(stage.expert_tokens for stage in stages), strict=True)
            return replace(first, expert_tokens=tuple(map(sum, counts)))
        return first

    def take_results(self) -> list[bytes]:
        """Remove and return `results`."""
        return [self.results.popleft() for _ in range(len(self.results))]


def describe_failures(ranks: Iterable[int], answers: Iterable[Answer]) -> str | None:
    """The ranks that failed to compute a step, as text; None if all succeeded."""
    failures = [
        f"worker {rank}, whose step failed ({decode_raised(message).text})"
        for rank, (kind, message) in zip(ranks, answers, strict=True)
        if kind in (RAISED, LOST)
    ]
    return " and ".join(failures) or None


def _regions_of(results: Sequence[StepResult]) -> tuple[Regions, ...]:
    """The regions of each rank. Empty if no rank measured regions."""
    if not any(result.regions for result in results):
        return ()
    return tuple([result.regions[0] if result.regions else NO_REGIONS for result in results])


def _read_answer(rank: int, answer: Answer) -> StepResult:
    """The result of a step. Raises WorkerStepError, or DeviceError if the device is lost."""
    kind, message = answer
    if kind == LOST:
        raise DeviceError(decode_raised(message).text)
    if kind == RAISED:
        raised = decode_raised(message)
        error = WorkerStepError(f"worker {rank}: {raised.text}")
        error.add_note(raised.traceback)
        raise error
    return decode_result(message)
