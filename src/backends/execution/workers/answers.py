"""Reads and compares the answers of workers, however they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....core.errors import ConfigError, DeviceError
from ....core.interfaces import ModelInfo
from ....core.plan import StepResult
from ..identity import Identity, differences
from .messages import LOST, RAISED, Loaded, decode_raised, decode_result

LAG_SECONDS = 1.0
"""Maximum time between the answers of two ranks to a step that raises on all ranks."""
Answer = tuple[bytes, bytes]
"""Kind and content of a message from a worker."""


class WorkerStepError(RuntimeError):
    """A step raised in a worker. The worker's traceback is a note of this exception."""


def agree(identity: Identity, answers: Sequence[Loaded]) -> ModelInfo:
    """The model's info, from the answers of all ranks that have loaded it.

    Raises ConfigError with all differences between a worker and the engine.
    """
    for rank, answer in enumerate(answers):
        if found := list(differences(identity, answer.identity)):
            raise ConfigError(f"worker {rank} differs from the engine: {'; '.join(found)}")
    infos = [answer.info for answer in answers]
    if any(info.kv_windows != infos[0].kv_windows for info in infos):
        raise ConfigError(
            "the stages of a model with a window cannot share blocks with a draft model: use "
            "another speculative method, or one stage"
        )
    return replace(
        infos[0],
        drafts_need_lookahead=any(info.drafts_need_lookahead for info in infos),
        num_blocks=min(info.num_blocks for info in infos),
        num_host_blocks=min(info.num_host_blocks for info in infos),
        kv_bytes_per_block=sum(info.kv_bytes_per_block for info in infos),
    )


def read_answer(rank: int, answer: Answer) -> StepResult:
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
