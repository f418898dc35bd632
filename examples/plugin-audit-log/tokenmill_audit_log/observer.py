"""The observer and its options."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tokenmill.plugin import (
    Admitted,
    Finished,
    FinishedRequest,
    PluginContext,
    PluginFailed,
    Preempted,
    Refused,
    Started,
    Stopping,
    hookimpl,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogOptions:
    """Options of the table [observer.audit-log]."""

    path: str = field(
        default="audit.jsonl", metadata={"help": "file to append to; its folder must exist"}
    )


class AuditLog:
    """Appends to a file in blocks, so that the engine does not wait for the disk at every line."""

    def __init__(self, context: PluginContext, options: AuditLogOptions) -> None:
        # Opened here, so that the engine does not start with a wrong path; closed in on_stopping.
        self._file = Path(options.path).open("a", encoding="utf-8")  # noqa: SIM115
        self._lines = context.metrics.counter("lines", "Lines by their event.", ["event"])

    @hookimpl
    def on_started(self, event: Started) -> None:
        self._write("started", model=event.model_name)
        self._file.flush()

    @hookimpl
    def on_admitted(self, event: Admitted) -> None:
        self._write("admitted", **_without_salt(event))

    @hookimpl
    def on_refused(self, event: Refused) -> None:
        self._write("refused", **_without_salt(event))

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self._write("preempted", request_id=event.request_id, mode=event.mode)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        for request in event.requests:
            self._write("finished", **_without_salt(request))

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self._write("plugin_failed", **asdict(event))

    @hookimpl
    def on_stopping(self, event: Stopping) -> None:
        self._write("stopping")
        self._file.close()

    def _write(self, what: str, **fields: object) -> None:
        if self._file.closed:
            return  # another plugin failed while the engine was closing
        line = {"time": datetime.now(UTC).isoformat(), "event": what, **fields}
        self._file.write(json.dumps(line) + "\n")
        self._lines.labels(what).inc()


def _without_salt(event: Admitted | Refused | FinishedRequest) -> dict[str, object]:
    """All fields but the cache salt, which may be a secret."""
    found = asdict(event)
    del found["options"]["cache_salt"]
    return found
