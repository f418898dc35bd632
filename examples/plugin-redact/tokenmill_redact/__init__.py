"""The model sees [email-1] instead of an e-mail address."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .redact import Redact

    registry.offer(kinds.TRANSFORM, "redact", Redact)
