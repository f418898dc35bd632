"""Why an attention backend cannot serve a model: what it says, and what it may not know of."""

from __future__ import annotations

from typing import Any


def reasons_against(backend: Any, spec: Any) -> list[str]:
    """Every reason against a backend, its class or what looks like one, for an AttentionSpec.

    A precision of the KV cache that is not the model's must be one of its `kv_cache_dtypes`: one
    that does not say so would take the cache for something else. Where these are None, it asks
    other backends in this way.
    """
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
