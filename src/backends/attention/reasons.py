"""The reasons why an attention backend cannot serve a model, its own and those that it cannot know."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...core.interfaces import Progress, no_progress
from ..machine.compiling import BuildError


def reasons_against(backend: Any, spec: Any, progress: Progress = no_progress) -> list[str]:
    """Every reason against a backend, its class or an object used like one, for an AttentionSpec.

    A backend that compiles something has `build(spec, progress)`; it is called first, so that its
    progress is visible. A failure there is one of the reasons that the backend gives.

    A precision of the KV cache that is not the model's must be one of its `kv_cache_dtypes`: a
    backend that does not name it would read the cache wrongly. None means that the backend asks
    others with this function.
    """
    if hasattr(backend, "build"):
        with suppress(BuildError):
            backend.build(spec, progress)
    reasons: list[str] = backend.reasons_against(spec)
    wanted = getattr(spec, "kv_cache_dtype", None)
    known = getattr(backend, "kv_cache_dtypes", ())
    if wanted is None or known is None or wanted in known:
        return reasons
    name = str(wanted).removeprefix("torch.")
    return [
        *reasons,
        f"it keeps keys and values in the model's precision, not in {name} (--kv-cache-dtype)",
    ]
