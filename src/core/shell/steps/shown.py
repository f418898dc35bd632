"""Shows the logged steps on the board, for a parent process that outlives this one."""

from __future__ import annotations

from ...engine.step_log.log import StepLog
from ...processes.watching.last_steps import LastSteps


class ShownSteps:
    """The step log's steps as they are launched and finished."""

    def __init__(self, log: StepLog, shown: LastSteps) -> None:
        self._log, self._shown = log, shown

    def launch(self, step_id: int) -> None:
        record = self._log.opened(step_id)
        self._shown.launch(
            record.engine_ids,
            record.preempted,
            step_id,
            record.planned_at,
            len(record.engine_ids),
            record.num_tokens,
            sum([count for _, count in record.prompts]) if record.prompts else 0,
            sum(record.num_drafts),
            record.num_running,
            record.num_waiting,
        )

    def finish(self) -> None:
        """Show that the log's last step is committed, or has raised."""
        record = self._log.closed
        assert record is not None
        self._shown.finish(
            record.step_id,
            record.plan_seconds,
            record.device_from,
            record.device_to,
            record.committed_at,
            record.commit_seconds,
            record.raised,
        )
