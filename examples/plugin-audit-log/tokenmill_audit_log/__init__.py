"""Audit log: a JSON line when a request is admitted, preempted or finished."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .observer import AuditLog, AuditLogOptions

    registry.offer(kinds.OBSERVER, "audit-log", AuditLog, options=AuditLogOptions)
